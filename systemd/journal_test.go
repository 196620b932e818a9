// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"golang.org/x/sys/unix"
)

// fields parses an entry in the journal's native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/).
func fields(t *testing.T, entry []byte) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for len(entry) > 0 {
		line, rest, ok := bytes.Cut(entry, []byte("\n"))
		if !ok {
			t.Fatalf("the entry has no end: %q", entry)
		}
		name, value, ok := strings.Cut(string(line), "=")
		if !ok {
			size := binary.LittleEndian.Uint64(rest)
			value, rest = string(rest[8:8+size]), rest[8+size+1:]
		}
		all[name], entry = value, rest
	}
	return all
}

func TestJournalFields(t *testing.T) {
	var entry bytes.Buffer
	log := slog.New(&journalHandler{level: slog.LevelInfo, w: &entry})
	long := strings.Repeat("x", 2*fieldSize)
	log.With("class", "nvme").Log(t.Context(), LevelNotice, "device gone", "device", "nvme-1", "err", errors.New("unplugged\nat night\x1b[31m\xff"),
		"pod", "", "stack", long)
	got := fields(t, entry.Bytes())
	for name, want := range map[string]string{
		"MESSAGE":          "device gone class=nvme device=nvme-1 err=unplugged at night [31m\uFFFD",
		"PRIORITY":         "5",
		"MESSAGE_ID":       MessageIDs()["device gone"],
		"METALPLUG_DEVICE": "nvme-1",
		"METALPLUG_CLASS":  "nvme",
		"METALPLUG_ERR":    "unplugged\nat night\x1b[31m\xff",
		"METALPLUG_STACK":  long[:fieldSize] + "...",
	} {
		if got[name] != want || want == "" {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if _, ok := got["METALPLUG_POD"]; ok {
		t.Error("an empty field is written")
	}
	entry.Reset()
	log.Debug("uevent")
	if entry.Len() > 0 {
		t.Errorf("a line below the level is written: %q", entry.Bytes())
	}
}

// TestJournalIsNotRead simulates a journald that reads nothing while other senders' datagrams fill its queue. The callers do
// not wait. journald gets the lines when it reads again.
func TestJournalIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	journald := listen(t, path)
	other, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for err == nil { // fill the queue
		_ = other.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, err = other.Write([]byte("MESSAGE=other\n"))
	}
	log := openJournal(path, io.Discard, slog.LevelInfo)
	const lines = 100
	for n := range lines {
		log.Info("device gone", "seqnum", n)
	}
	buf := make([]byte, 1<<16)
	for next := 0; next < lines; {
		n, err := journald.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		switch got := fields(t, buf[:n]); got["METALPLUG_SEQNUM"] {
		case "":
		case fmt.Sprint(next):
			next++
		default:
			t.Fatalf("line %d is %v", next, got)
		}
	}
	log.Close()
}

// listen creates journald's socket.
func listen(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	journald, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { journald.Close() })
	return journald
}

// TestJournalIsReplaced simulates a journald that creates a new socket. Until the daemon can see the new socket, lines
// go to standard error.
func TestJournalIsReplaced(t *testing.T) {
	for _, c := range []struct {
		name  string
		stale bool // the path still shows the old socket, as in the sandbox of the unit
	}{{"without a socket", false}, {"with the old socket", true}} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "socket")
			text := &flaky{calls: make(chan struct{}, 10)}
			log := openJournal(path, text, slog.LevelInfo)
			buf := make([]byte, 1<<16)
			expect := func(journald *net.UnixConn, message string) {
				t.Helper()
				n, err := journald.Read(buf)
				if got := fields(t, buf[:n])["MESSAGE"]; err != nil || got != message {
					t.Fatalf("journald gets %q, %v; want %q", got, err, message)
				}
			}
			first := listen(t, path)
			log.Info("first")
			expect(first, "first")
			first.Close()
			if !c.stale {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			log.Error("device gone", "err", "a\nb")
			<-text.calls
			if text.String() != "<3>device gone err=a b\n" {
				t.Errorf("standard error gets %q", text.String())
			}
			text.fails.Store(true)
			log.Info("lost")
			<-text.calls
			if c.stale {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			second := listen(t, path)
			log.Info("second")
			expect(second, "second")
			expect(second, "log lines dropped detail=1 lines: the reader of the log was too slow or has ended")
			log.Close()
		})
	}
}

// flaky is a reader that sometimes fails.
type flaky struct {
	fails atomic.Bool
	mu    sync.Mutex
	text  bytes.Buffer
	calls chan struct{} // nil if the test ignores the calls
}

func (f *flaky) Write(p []byte) (int, error) {
	if f.calls != nil {
		defer func() { f.calls <- struct{}{} }()
	}
	if f.fails.Load() {
		return 0, unix.EPIPE
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.Write(p)
}

func (f *flaky) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.String()
}

func TestLevels(t *testing.T) {
	for name, want := range map[string]journal.Priority{
		"debug": journal.PriDebug, "info": journal.PriInfo, "notice": journal.PriNotice,
		"warn": journal.PriWarning, "error": journal.PriErr,
	} {
		level, err := ParseLevel(name)
		if err != nil || priority(level) != want {
			t.Errorf("%s: priority %v, %v, want %v", name, priority(level), err, want)
		}
	}
	if _, err := ParseLevel("loud"); err == nil {
		t.Error("there is a level loud")
	}
}
