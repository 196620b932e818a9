// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/systemd"
)

func TestTextHasNoTime(t *testing.T) {
	var out bytes.Buffer
	log := systemd.OpenLog(&out, slog.LevelInfo)
	log.With("resource", "example.org/x").Log(t.Context(), systemd.LevelNotice, "endpoint registered", "pod", "")
	log.Debug("uevent")
	log.Close()
	if want := "level=NOTICE msg=\"endpoint registered\" resource=example.org/x\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// stuck is a reader that does not read until it is released.
type stuck struct {
	free chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.free
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *stuck) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestStuckReader checks that no caller waits for the reader. When the reader continues, it gets the lines in their
// order, and then the count of dropped lines. No error may be dropped.
func TestStuckReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &stuck{free: make(chan struct{})}
		log := systemd.OpenLog(reader, slog.LevelInfo)
		const lines = 2 * 4096
		pad := strings.Repeat("x", 100)
		for n := range lines {
			log.Info(pad, "seqnum", n)
		}
		log.Error("audit entries lost", "device", "nvme-1")
		synctest.Wait()
		close(reader.free)
		synctest.Wait()
		log.Info("after")
		log.Close()
		written := strings.Split(strings.TrimSpace(reader.String()), "\n")
		n := 0
		for ; n < len(written) && strings.Contains(written[n], pad); n++ {
			if !strings.HasSuffix(written[n], fmt.Sprint("seqnum=", n)) {
				t.Fatalf("line %d is %q", n, written[n])
			}
		}
		if n < lines/4 || n == lines {
			t.Errorf("%d of %d lines were kept", n, lines)
		}
		rest := strings.Join(written[n:], "\n")
		want := "level=ERROR msg=\"audit entries lost\" device=nvme-1\n" +
			fmt.Sprintf("level=WARN msg=\"log lines dropped\" detail=\"%d lines: the reader of the log was too slow or has ended\"\n", lines-n) +
			"level=INFO msg=after"
		if rest != want {
			t.Errorf("then:\n%s\nwant\n%s", rest, want)
		}
	})
}

// TestCloseIsBounded checks that the daemon can exit while a reader is stuck.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &stuck{free: make(chan struct{})}
		log := systemd.OpenLog(reader, slog.LevelInfo)
		log.Info("last")
		began := time.Now()
		log.Close()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
		log.Info("too late")
		close(reader.free)
	})
}
