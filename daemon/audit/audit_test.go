// SPDX-License-Identifier: Apache-2.0

package audit

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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/clock"
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

// entries reads a file of the audit. A line that is torn is not one.
func entries(t *testing.T, name string) (all []Entry, torn int) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e Entry
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
	l := Open(filepath.Join(dir, "state"), log)
	erased := Entry{
		Event: Erased, Resource: "example.org/disk", Device: "nvme-1", Identity: map[string]string{"device/serial": "S1", "wwid": "eui.1"},
		Pods: []string{"A"}, Method: "zero", Result: "ok", Verified: "1 GiB <zero>", Seconds: 1.5,
	}
	failed := Entry{Event: Failed, Device: "nvme-1", Result: "media error"}
	l.Note(erased)
	l.Note(failed)
	l.Close()
	name := filepath.Join(dir, "state", "audit.jsonl")
	got, torn := entries(t, name)
	for i := range got {
		if got[i].Time.IsZero() {
			t.Errorf("%+v has no time", got[i])
		}
		got[i].Time = time.Time{}
	}
	if want := []Entry{erased, failed}; torn != 0 || !reflect.DeepEqual(got, want) {
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

// TestRemovedAuditIsMadeAgain: what was written is not lost with the file, be it of this run or of the last.
func TestRemovedAuditIsMadeAgain(t *testing.T) {
	log, said := logger()
	dir := filepath.Join(t.TempDir(), "state")
	name := filepath.Join(dir, "audit.jsonl")
	for n := range 3 {
		l := Open(dir, log)
		if n > 0 {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		if n < 2 { // the third writes nothing of its own
			l.Note(Entry{Event: Refused, Method: fmt.Sprint(n)})
		}
		l.Close()
	}
	all, torn := entries(t, name)
	if torn > 0 || len(all) != 2 || all[0].Method != "0" || all[1].Method != "1" {
		t.Errorf("%+v, %d torn", all, torn)
	}
	if n := strings.Count(said.String(), `msg="audit made again" err="somebody has removed `+name); n != 2 {
		t.Errorf("it is said %d times: %s", n, said)
	}
}

// TestReplacedAudit: what somebody puts in the place of the file is never written over, and nothing of the last is lost.
func TestReplacedAudit(t *testing.T) {
	edit := func(name string, change func(text []byte) []byte) error { // as sed -i and mv do
		text, err := os.ReadFile(name)
		return errors.Join(err, os.WriteFile(name+".edited", change(text), 0o600), os.Rename(name+".edited", name))
	}
	const mine = `{"event":"reset"}` + "\n"
	for name, c := range map[string]struct {
		replace func(name string) error
		want    []Event // in the file then
		removed []Event // in what is kept beside; nil: nothing is
	}{
		"another": {
			replace: func(name string) error { return edit(name, func([]byte) []byte { return []byte(mine) }) },
			want:    []Event{Reset, Failed}, removed: []Event{Refused},
		},
		"with more behind it": {
			replace: func(name string) error { return edit(name, func(text []byte) []byte { return append(text, mine...) }) },
			want:    []Event{Refused, Reset, Failed},
		},
		"after it was renamed": {
			replace: func(name string) error {
				return errors.Join(os.Rename(name, name+".renamed"), os.WriteFile(name, []byte(mine), 0o600))
			},
			want: []Event{Reset, Failed},
		},
		"a link that leads nowhere yet": {
			replace: func(name string) error {
				return errors.Join(os.Remove(name), os.Symlink("elsewhere", name))
			},
			want: []Event{Failed}, removed: []Event{Refused},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			name := filepath.Join(dir, "audit.jsonl")
			log, said := logger()
			l := Open(dir, log)
			l.Note(Entry{Event: Refused})
			l.Close()
			l = Open(dir, log)
			if err := c.replace(name); err != nil {
				t.Fatal(err)
			}
			l.Note(Entry{Event: Failed})
			l.Close()
			if got := events(t, name); !slices.Equal(got, c.want) {
				t.Errorf("in the file is %q, want %q", got, c.want)
			}
			_, err := os.Lstat(name + ".removed")
			if kept := err == nil; kept != (c.removed != nil) || strings.Contains(said.String(), "the last is in "+name+".removed") != kept {
				t.Errorf("kept beside: %t: %s", kept, said)
			} else if kept && !slices.Equal(events(t, name+".removed"), c.removed) {
				t.Errorf("kept beside is %q", events(t, name+".removed"))
			}
		})
	}
}

// TestReplacedOften: each that was replaced is kept.
func TestReplacedOften(t *testing.T) {
	f := newFile(t.TempDir())
	defer f.close()
	for n := range 3 {
		if err := f.append([]byte(fmt.Sprintln(n))); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(f.name), os.WriteFile(f.name, []byte("other\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if told, err := f.remake(); told == nil || err != nil {
			t.Errorf("%v, %v", told, err)
		}
		if told, err := f.remake(); told != nil || err != nil {
			t.Errorf("again: %v, %v", told, err)
		}
	}
	for aside, want := range map[string]string{".removed": "0\n", ".removed.2": "other\n1\n", ".removed.3": "other\n2\n", "": "other\n"} {
		if got, err := os.ReadFile(f.name + aside); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", aside, got, err, want)
		}
	}
}

// events returns what the entries of a file are about.
func events(t *testing.T, name string) (all []Event) {
	t.Helper()
	lines, _ := entries(t, name)
	for _, e := range lines {
		all = append(all, e.Event)
	}
	return all
}

func TestNobodyNotes(t *testing.T) {
	var l *Log
	l.Note(Entry{Event: Erased})
	l.Close()
}

func TestOrder(t *testing.T) {
	log, _ := logger()
	dir := t.TempDir()
	l := Open(dir, log)
	for n := range 500 {
		l.Note(Entry{Event: Refused, Method: fmt.Sprint(n)})
	}
	l.Close()
	all, torn := entries(t, filepath.Join(dir, "audit.jsonl"))
	for n, e := range all {
		if e.Method != fmt.Sprint(n) || e.Lost != 0 {
			t.Fatalf("entry %d is %+v", n, e)
		}
	}
	if len(all) != 500 || torn != 0 {
		t.Errorf("%d entries, %d torn", len(all), torn)
	}
}

// TestTornLine: what a crash has left half written spoils only itself.
func TestTornLine(t *testing.T) {
	log, _ := logger()
	dir := t.TempDir()
	name := filepath.Join(dir, "audit.jsonl")
	if err := os.WriteFile(name, []byte(`{"event":"reset"}`+"\n"+`{"event":"era`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := Open(dir, log)
	l.Note(Entry{Event: Failed})
	l.Close()
	all, torn := entries(t, name)
	if len(all) != 2 || all[0].Event != Reset || all[1].Event != Failed || torn != 1 {
		t.Errorf("%+v, %d torn", all, torn)
	}
}

func TestRotation(t *testing.T) {
	f := newFile(t.TempDir())
	f.most = 100
	line := func(n int) []byte { return []byte(fmt.Sprintf("%039d\n", n)) } // two of them have room
	for n := range 15 {
		if err := f.append(line(n)); err != nil {
			t.Fatal(err)
		}
	}
	f.close()
	for n, want := range map[string]string{
		"": string(line(14)), ".1": string(line(12)) + string(line(13)), ".2": string(line(10)) + string(line(11)),
		".3": string(line(8)) + string(line(9)), ".4": string(line(6)) + string(line(7)),
	} {
		if got, err := os.ReadFile(f.name + n); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", n, got, err, want)
		}
	}
	if _, err := os.Lstat(f.name + ".5"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a fifth is kept: %v", err)
	}
	if err := f.append(bytes.Repeat([]byte("x"), 200)); err != nil { // more than one file has room for
		t.Error(err)
	}
}

// full makes a directory one of a full disk, a small one.
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

// TestFullDisk: nobody waits, and what was noted meanwhile is written when there is room.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	mend := full(t, dir)
	log, said := logger()
	synctest.Test(t, func(t *testing.T) {
		l := Open(dir, log)
		l.Note(Entry{Event: Failed, Method: "1"})
		synctest.Wait()
		for range 3 {
			clock.Pass(writeLast)
			l.Note(Entry{Event: Failed, Method: "2"})
			synctest.Wait()
		}
		mend()
		clock.Pass(writeLast)
		l.Close()
	})
	all, _ := entries(t, filepath.Join(dir, "audit.jsonl"))
	if len(all) != 4 || all[0].Method != "1" || all[0].Lost != 0 {
		t.Errorf("%+v", all)
	}
	text := said.String()
	if strings.Count(text, "audit not kept") != 1 || !strings.Contains(text, syscall.ENOSPC.Error()) || !strings.Contains(text, "audit kept again") {
		t.Errorf("the log is %q", text)
	}
}

// TestTooMuchForAFullDisk: the oldest entries are given up, but no erasure; then the file says how many, and so does the log.
func TestTooMuchForAFullDisk(t *testing.T) {
	dir := t.TempDir()
	mend := full(t, dir)
	said := &output{}
	synctest.Test(t, func(t *testing.T) {
		l := Open(dir, slog.New(slog.NewTextHandler(said, nil)))
		l.Note(Entry{Event: Erased, Method: "zero"})
		synctest.Wait()
		for range keptMost + 9 {
			l.Note(Entry{Event: Refused})
		}
		synctest.Wait()
		mend()
		clock.Pass(writeLast)
		l.Close()
	})
	all, _ := entries(t, filepath.Join(dir, "audit.jsonl"))
	if len(all) != keptMost || all[0].Event != Erased || all[0].Lost != 10 {
		t.Errorf("%d entries, the first is %+v", len(all), all[0])
	}
	if n := strings.Count(said.String(), "audit entry lost"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

// TestStopOnAFullDisk: what is lost for good stands in the journal.
func TestStopOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	full(t, dir)
	log, said := logger()
	l := Open(dir, log)
	l.Note(Entry{Event: Erased, Method: "zero"})
	l.Note(Entry{Event: Erased, Method: "format"})
	l.Close()
	if n := strings.Count(said.String(), "audit entry lost"); n != 2 {
		t.Errorf("%d entries are in the log: %s", n, said)
	}
}

// TestNothingHalfWritten: a disk that is full in the middle of a line keeps none of it.
func TestNothingHalfWritten(t *testing.T) {
	dir := t.TempDir()
	mount(t, dir, "8k")
	f := newFile(dir)
	defer f.close()
	line := append(bytes.Repeat([]byte("x"), 2999), '\n')
	for n := range 4 {
		err := f.append(line)
		if full := n >= 2; errors.Is(err, unix.ENOSPC) != full || !full && err != nil {
			t.Errorf("line %d: %v", n, err)
		}
	}
	if got, err := os.ReadFile(f.name); err != nil || len(got) != 2*len(line) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, 2*len(line))
	}
}

// TestNotedAfterTheEnd: a late entry is logged, since nothing writes the file any more.
func TestNotedAfterTheEnd(t *testing.T) {
	log, said := logger()
	dir := t.TempDir()
	l := Open(dir, log)
	l.Close()
	l.Note(Entry{Event: Erased, Device: "late"})
	if !strings.Contains(said.String(), "device=late") {
		t.Errorf("not logged:\n%s", said)
	}
	if _, err := os.Stat(filepath.Join(dir, "audit.jsonl")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was written after the end: %v", err)
	}
}

// TestAuditThatIsAnothers: what was removed is not made again where it has become another's; what was still to be written is
// told of.
func TestAuditThatIsAnothers(t *testing.T) {
	dir := t.TempDir()
	log, said := logger()
	l := Open(dir, log)
	l.Note(Entry{Event: Allocated, Device: "a"})
	l.Close()

	l = Open(dir, log)
	l.Owned = func() error { return errors.New("it is another's") }
	if err := os.Remove(l.file.name); err != nil {
		t.Fatal(err)
	}
	l.Note(Entry{Event: Erased, Device: "b"})
	l.Close()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	if !strings.Contains(said.String(), "it is another's") || !strings.Contains(said.String(), `msg="audit entry lost"`) {
		t.Error(said.String())
	}
}
