// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

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

// TestMovedDirectory: the audit is in the directory that has its path, whatever becomes of the one in which it was.
func TestMovedDirectory(t *testing.T) {
	const mine = `{"event":"reset"}` + "\n"
	away := func(dir string) error { return os.Rename(dir, dir+".away") }
	for name, c := range map[string]struct {
		move    func(t *testing.T, dir string) error
		want    []Event // in the file then
		removed []Event // in what is kept beside; nil: nothing is
		told    string  // of all that; empty: nothing is
	}{
		"away": {
			move: func(_ *testing.T, dir string) error { return away(dir) },
			want: []Event{Refused, Failed}, told: "somebody has moved DIR away, or put another in its place",
		},
		"away, and another is there": {
			move: func(_ *testing.T, dir string) error { return errors.Join(away(dir), os.Mkdir(dir, 0o700)) },
			want: []Event{Refused, Failed}, told: "somebody has moved DIR away, or put another in its place",
		},
		"another is mounted over it": {
			move: func(t *testing.T, dir string) error { mount(t, dir, "1m"); return nil },
			want: []Event{Refused, Failed}, told: "somebody has moved DIR away, or put another in its place",
		},
		"another has an audit": {
			move: func(_ *testing.T, dir string) error {
				return errors.Join(away(dir), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "audit.jsonl"), []byte(mine), 0o600))
			},
			want: []Event{Reset, Failed}, removed: []Event{Refused}, told: "what was in the last is in DIR/audit.jsonl.removed",
		},
		"another has the same audit": {
			move: func(_ *testing.T, dir string) error {
				text, err := os.ReadFile(filepath.Join(dir, "audit.jsonl"))
				return errors.Join(err, away(dir), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "audit.jsonl"), text, 0o600))
			},
			want: []Event{Refused, Failed},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			log, said := logger()
			l := Open(dir, log)
			l.Note(Entry{Event: Refused})
			l.Close()
			l = Open(dir, log)
			if err := c.move(t, dir); err != nil {
				t.Fatal(err)
			}
			l.Note(Entry{Event: Failed})
			l.Close()
			file := filepath.Join(dir, "audit.jsonl")
			if got := events(t, file); !slices.Equal(got, c.want) {
				t.Errorf("in the file is %q, want %q", got, c.want)
			}
			if c.removed != nil && !slices.Equal(events(t, file+".removed"), c.removed) {
				t.Errorf("kept beside is %q", events(t, file+".removed"))
			}
			told := strings.ReplaceAll(c.told, "DIR", dir)
			if text := said.String(); strings.Contains(text, "audit made again") != (told != "") || !strings.Contains(text, told) {
				t.Errorf("the log is %q, want %q", text, told)
			}
			if _, err := os.Lstat(dir + ".away"); err == nil && !slices.Equal(events(t, dir+".away/audit.jsonl"), []Event{Refused}) {
				t.Errorf("away is %q, want what was in it", events(t, dir+".away/audit.jsonl"))
			}
		})
	}
}

// TestRenamedAudit: a file that was only renamed in its directory, as by logrotate, is written to until another is there.
func TestRenamedAudit(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "audit.jsonl")
	log, said := logger()
	l := Open(dir, log)
	l.Note(Entry{Event: Refused})
	l.Close()
	l = Open(dir, log)
	if err := os.Rename(name, name+".old"); err != nil {
		t.Fatal(err)
	}
	l.Note(Entry{Event: Failed})
	l.Close()
	if got := events(t, name+".old"); !slices.Equal(got, []Event{Refused, Failed}) || strings.Contains(said.String(), "audit made again") {
		t.Errorf("in the file is %q, the log is %q", got, said)
	}
	if _, err := os.Lstat(name); err == nil {
		t.Error("it was made again")
	}
}

// pipe puts a pipe that is held open in the place of a file; something is in it.
func pipe(t *testing.T, name, text string) *os.File {
	t.Helper()
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	if _, err := held.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return held
}

// TestPipe: nothing is read from a pipe in the place of the file, where it may never come, nor is anything written to it.
func TestPipe(t *testing.T) {
	f := newFile(t.TempDir())
	defer f.close()
	const was, more = "was\n", "more\n"
	if err := f.append([]byte(was)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.name); err != nil {
		t.Fatal(err)
	}
	held := pipe(t, f.name, was) // as much as is compared, so that nobody waits here
	if told, err := f.remake(); told == nil || err != nil {
		t.Errorf("%v, %v", told, err)
	}
	if text, err := os.ReadFile(f.name + ".removed"); string(text) != was {
		t.Errorf("kept beside is %q, %v", text, err)
	}
	for range 2 {
		if told, err := f.remake(); told != nil || err != nil {
			t.Errorf("again: %v, %v", told, err)
		}
		if err := f.append([]byte(more)); err == nil || err.Error() != "open "+f.name+": it is not a regular file: move it away" {
			t.Errorf("append: %v", err)
		}
	}
	if _, err := held.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, len(was)+len(more))
	if n, err := held.Read(text); string(text[:n]) != was+"x" {
		t.Errorf("in the pipe is %q, %v", text[:n], err)
	}
	if err := errors.Join(os.Remove(f.name), f.append([]byte(more))); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(f.name); string(text) != more {
		t.Errorf("in the file is %q, %v", text, err)
	}
}

// TestPipeAtTheStart: what it stands in the way of is told, and is not waited for.
func TestPipeAtTheStart(t *testing.T) {
	dir := t.TempDir()
	pipe(t, filepath.Join(dir, "audit.jsonl"), "")
	log, said := logger()
	l := Open(dir, log)
	l.Note(Entry{Event: Erased})
	l.Close()
	if text := said.String(); !strings.Contains(text, "audit.jsonl: it is not a regular file") || strings.Count(text, "audit entry lost") != 1 {
		t.Errorf("the log is %q", text)
	}
}
