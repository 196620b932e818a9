// SPDX-License-Identifier: Apache-2.0

package audit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/integration/need"
)

const (
	retry   = time.Minute // between attempts to write
	waiting = 4096        // entries that wait for a full disk
)

// output is a log that may be read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func logger() (*slog.Logger, *output) {
	o := &output{}
	return slog.New(slog.NewTextHandler(o, nil)), o
}

// entries reads an audit file. It returns the complete entries, and the number of truncated lines.
func entries(t *testing.T, name string) (all []audit.Entry, torn int) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			torn++
			continue
		}
		all = append(all, e)
	}
	return all, torn
}

func TestEntry(t *testing.T) {
	log, said := logger()
	dir := t.TempDir()
	l := audit.Open(dir, log)
	erased := audit.Entry{
		Event: audit.Erased, Resource: "example.org/disk", Device: "nvme-1", Identity: map[string]string{"device/serial": "S1", "wwid": "eui.1"},
		Pods: []string{"A"}, Method: "zero", Result: "ok", Verified: "1 GiB <zero>", Seconds: 1.5,
	}
	failed := audit.Entry{Event: audit.Failed, Device: "nvme-1", Result: "media error"}
	l.Note(erased)
	l.Note(failed)
	l.Close()
	name := filepath.Join(dir, "audit.jsonl")
	got, torn := entries(t, name)
	for i := range got {
		if got[i].Time.IsZero() {
			t.Errorf("%+v has no time", got[i])
		}
		got[i].Time = time.Time{}
	}
	if want := []audit.Entry{erased, failed}; torn != 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %d torn, want %+v", got, torn, want)
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	want := `level=INFO msg="device erased" device=nvme-1 resource=example.org/disk serial=S1 pod=A action=zero detail="1 GiB <zero>" duration=1.5s`
	if text := said.String(); !strings.Contains(text, want) || strings.Count(text, "\n") != 1 {
		t.Errorf("the log is %q, want a line with %q", text, want)
	}
}

// TestTornLine checks that a line that was truncated by a crash damages only itself.
func TestTornLine(t *testing.T) {
	log, _ := logger()
	dir := t.TempDir()
	name := filepath.Join(dir, "audit.jsonl")
	if err := os.WriteFile(name, []byte(`{"event":"reset"}`+"\n"+`{"event":"era`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := audit.Open(dir, log)
	l.Note(audit.Entry{Event: audit.Failed})
	l.Close()
	all, torn := entries(t, name)
	if len(all) != 2 || all[0].Event != audit.Reset || all[1].Event != audit.Failed || torn != 1 {
		t.Errorf("%+v, %d torn", all, torn)
	}
}

// full mounts a small full disk at a directory.
func full(t *testing.T, dir string) (mend func()) {
	t.Helper()
	mount(t, dir, "1m")
	name := filepath.Join(dir, "others")
	if err := os.WriteFile(name, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk checks that no caller waits, and that the entries are written when there is space again. New entries that the queue
// cannot hold are dropped. The next write to the file and the log report their number.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	mend := full(t, dir)
	log, said := logger()
	synctest.Test(t, func(t *testing.T) {
		l := audit.Open(dir, log)
		l.Note(audit.Entry{Event: audit.Erased, Method: "zero"})
		synctest.Wait()
		clock.Pass(retry)
		synctest.Wait()
		for n := range waiting + 9 {
			l.Note(audit.Entry{Event: audit.Refused, Method: fmt.Sprint(n)})
		}
		synctest.Wait()
		clock.Pass(retry)
		mend()
		clock.Pass(retry)
		l.Close()
	})
	all, _ := entries(t, filepath.Join(dir, "audit.jsonl"))
	if len(all) != waiting+1 || all[0].Method != "zero" || all[0].Lost != 9 || all[1].Lost != 0 {
		t.Errorf("%d entries, the first are %+v", len(all), all[:2])
	}
	text := said.String()
	for _, want := range []string{"audit file not writable", syscall.ENOSPC.Error(), "audit file writable again", "device erased", `msg="audit entries lost" err="9 entries are missing from `} {
		if strings.Count(text, want) != 1 {
			t.Errorf("the log is %q, want %q once", text, want)
		}
	}
}

// mount mounts a tmpfs of a size over a directory until the test ends.
func mount(t *testing.T, dir, size string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		need.Lacks(t, "root", "mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestStopOnAFullDisk checks that lost entries are in the journal.
func TestStopOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	full(t, dir)
	log, said := logger()
	l := audit.Open(dir, log)
	l.Note(audit.Entry{Event: audit.Erased, Method: "zero"})
	l.Note(audit.Entry{Event: audit.Erased, Method: "format"})
	l.Close()
	if text := said.String(); !strings.Contains(text, `msg="audit entries lost" err="2 entries are missing from `) || strings.Count(text, "device erased") != 2 {
		t.Errorf("the log is %q", text)
	}
}

// TestNoPartialLine checks that no partial line remains if the disk becomes full in the middle of it.
func TestNoPartialLine(t *testing.T) {
	dir := t.TempDir()
	mount(t, dir, "8k")
	log, said := logger()
	for range 4 {
		l := audit.Open(dir, log)
		l.Note(audit.Entry{Event: audit.Failed, Method: strings.Repeat("x", 2900)})
		l.Close()
	}
	if all, torn := entries(t, filepath.Join(dir, "audit.jsonl")); len(all) != 2 || torn > 0 || strings.Count(said.String(), `err="1 entries are missing from `) != 2 {
		t.Errorf("%d whole lines, %d torn\n%s", len(all), torn, said)
	}
}

// TestNotedAfterTheEnd checks that a late entry is logged, because nothing writes the file any more.
func TestNotedAfterTheEnd(t *testing.T) {
	log, said := logger()
	dir := t.TempDir()
	l := audit.Open(dir, log)
	l.Close()
	l.Note(audit.Entry{Event: audit.Erased, Device: "late"})
	if !strings.Contains(said.String(), "device=late") {
		t.Errorf("not logged:\n%s", said)
	}
	if _, err := os.Stat(filepath.Join(dir, "audit.jsonl")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was written after the end: %v", err)
	}
}

// TestMain checks that no test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
