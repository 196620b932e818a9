// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// watched has the directories that a test has watched. made is created just before its parent directory is watched, so
// there is no event for it.
type watched struct {
	dirs []string
	made []string
}

func (w *watched) add(dir string) error {
	if len(w.made) > 0 && filepath.Dir(w.made[0]) == dir {
		if err := os.Mkdir(w.made[0], 0o700); err != nil {
			return err
		}
		w.made = w.made[1:]
	}
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	w.dirs = append(w.dirs, dir)
	return nil
}

func TestRearmMissesNoDirectory(t *testing.T) {
	for _, test := range []struct {
		name string
		made []string
		want []string
	}{
		{"none is made", nil, []string{"."}},
		{"the upper one is made meanwhile", []string{"up"}, []string{".", "up"}},
		{"both are made meanwhile", []string{"up", "up/dir"}, []string{".", "up", "up/dir"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := t.TempDir()
			w := &watched{}
			for _, name := range test.made {
				w.made = append(w.made, filepath.Join(base, name))
			}
			if err := rearm(filepath.Join(base, "up/dir"), w.add); err != nil {
				t.Fatal(err)
			}
			for _, name := range test.want {
				if !slices.Contains(w.dirs, filepath.Join(base, name)) {
					t.Errorf("%s is not watched, only %v", name, w.dirs)
				}
			}
		})
	}
}

func TestRearmDoesNotRepeatWhatCannotBeWatched(t *testing.T) {
	dir, full := t.TempDir(), errors.New("no space left")
	err := rearm(dir, func(d string) error {
		if d == dir {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
}

// inRoot calls a function on a thread that has another directory as its root.
func inRoot(t *testing.T, root string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, because the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chroot(root)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		need.Lacks(t, "root", "no root directory for this test: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// TestDirectoryInTheRoot checks that a directory in / is watched like any other, and is not confused with files in it
// or next to it.
func TestDirectoryInTheRoot(t *testing.T) {
	root := t.TempDir()
	w, err := Open("/state", "/far/down")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	inRoot(t, root, w.Rearm)
	for _, step := range []struct {
		do     func() error
		name   string
		itself bool
	}{
		{func() error { return os.Mkdir(filepath.Join(root, "state"), 0o700) }, "/state", true},
		{func() error { return os.Mkdir(filepath.Join(root, "state/file"), 0o700) }, "/state/file", false},
		{func() error { return os.Mkdir(filepath.Join(root, "statement"), 0o700) }, "/statement", false},
		{func() error { return os.Mkdir(filepath.Join(root, "far"), 0o700) }, "/far", true},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		e := <-w.Events
		if Name(e) != step.name || w.Itself(e) != step.itself {
			t.Errorf("an event of %s, itself %t, want %s, %t", Name(e), w.Itself(e), step.name, step.itself)
		}
		inRoot(t, root, w.Rearm)
	}
}
