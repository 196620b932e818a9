// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// places makes a directory for the places of a test, and a recording.
func places(t *testing.T) (tmp, file string) {
	t.Helper()
	tmp, file = t.TempDir(), filepath.Join(t.TempDir(), "machine")
	t.Setenv("TMPDIR", tmp)
	if err := os.WriteFile(file, []byte(disk), 0o600); err != nil {
		t.Fatal(err)
	}
	return tmp, file
}

// opens opens a recording.
func opens(t *testing.T, file string) *Source {
	t.Helper()
	s, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// abandon does what the kernel does of a process that is killed.
func abandon(t *testing.T, s *Source) {
	t.Helper()
	if err := errors.Join(s.watcher.Close(), s.place.dir.Close()); err != nil {
		t.Fatal(err)
	}
}

// is tells whether something is there.
func is(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// TestLeftPlaces: what is left by whoever was killed is removed by the next, and what only looks like that stays.
func TestLeftPlaces(t *testing.T) {
	_, file := places(t)
	for how, c := range map[string]struct {
		change func(root string) error
		stays  bool
	}{
		"left":              {func(string) error { return nil }, false},
		"half removed":      {func(root string) error { return os.RemoveAll(root + "/sys") }, false},
		"without a marker":  {func(root string) error { return os.Remove(filepath.Join(root, marker)) }, true},
		"another's mode":    {func(root string) error { return os.Chmod(root, 0o755) }, true},
		"a marker no file":  {func(root string) error { return replaced(filepath.Join(root, marker)) }, true},
		"a link to a place": {func(root string) error { return errors.Join(os.Rename(root, file+".d"), os.Symlink(file+".d", root)) }, true},
		"a file":            {func(root string) error { return errors.Join(os.RemoveAll(root), os.WriteFile(root, nil, 0o700)) }, true},
	} {
		t.Run(how, func(t *testing.T) {
			s := opens(t, file)
			abandon(t, s)
			if err := c.change(s.Root()); err != nil {
				t.Fatal(err)
			}
			if err := opens(t, file).Close(); err != nil {
				t.Error(err)
			}
			if is(s.Root()) != c.stays {
				t.Errorf("it stays: %v, want %v", !c.stays, c.stays)
			}
			if how == "a link to a place" && !is(filepath.Join(file+".d", marker)) {
				t.Error("what the link leads to is gone")
			}
		})
	}
}

// replaced puts a directory in the place of a file.
func replaced(name string) error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) }

// TestForeignPlaces: of another user, and of another file system.
func TestForeignPlaces(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can make what is another's")
	}
	_, file := places(t)
	owned, mounted := opens(t, file), opens(t, file)
	abandon(t, owned)
	abandon(t, mounted)
	if err := os.Chown(owned.Root(), 1, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("recording", mounted.Root(), "tmpfs", 0, "mode=0700"); err != nil {
		need.Lacks(t, "root", "nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mounted.Root(), 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(mounted.Root(), marker), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := opens(t, file).Close(); err != nil {
		t.Error(err)
	}
	for _, s := range []*Source{owned, mounted} {
		if !is(filepath.Join(s.Root(), marker)) {
			t.Errorf("%s is removed", s.Root())
		}
	}
}

// TestOneThatLivesKeepsItsPlace: from its beginning to its end, however many begin and end beside it, and find what was left.
func TestOneThatLivesKeepsItsPlace(t *testing.T) {
	tmp, file := places(t)
	for range 8 {
		abandon(t, opens(t, file))
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 8 {
				if err := livesUndisturbed(file); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the end: %v, %v", left, err)
	}
}

// livesUndisturbed opens a recording, looks at its tree and closes it.
func livesUndisturbed(file string) error {
	s, err := Open(file)
	if err != nil {
		return err
	}
	if _, err := os.Stat(s.Root() + "/sys/devices/pci0000:00/0000:00:02.0"); err != nil {
		return errors.Join(fmt.Errorf("its tree: %w", err), s.Close())
	}
	if devices, err := s.Enumerate(); err != nil || len(devices) == 0 {
		return errors.Join(fmt.Errorf("%d devices: %w", len(devices), err), s.Close())
	}
	return s.Close()
}

// TestCloseRemovesItsOwnAlone: what has come to its path is another's.
func TestCloseRemovesItsOwnAlone(t *testing.T) {
	_, file := places(t)
	s := opens(t, file)
	other := filepath.Join(s.Root(), "other")
	if err := errors.Join(os.RemoveAll(s.Root()), os.Mkdir(s.Root(), 0o700), os.Mkdir(other, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !is(other) {
		t.Error("what is another's is removed")
	}
	s = opens(t, file)
	if err := errors.Join(os.RemoveAll(s.Root()), s.Close()); err != nil {
		t.Errorf("a place that is gone: %v", err)
	}
}

// TestPlaceThatCannotBeRemoved: it is known for one still, and removed by the next who can.
func TestPlaceThatCannotBeRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can mount what is in the way")
	}
	_, file := places(t)
	s := opens(t, file)
	inTheWay := s.Root() + "/sys"
	if err := unix.Mount("recording", inTheWay, "tmpfs", 0, ""); err != nil {
		need.Lacks(t, "root", "nothing can be mounted here: %v", err)
	}
	if err := s.Close(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Close: %v", err)
	}
	if err := errors.Join(unix.Unmount(inTheWay, 0), opens(t, file).Close()); err != nil {
		t.Error(err)
	}
	if is(s.Root()) {
		t.Error("it is left for good")
	}
}

// TestPlaceThatCannotBeMade: it is told what to set.
func TestPlaceThatCannotBeMade(t *testing.T) {
	tmp, file := places(t)
	t.Setenv("TMPDIR", filepath.Join(tmp, "none"))
	if _, err := Open(file); !errors.Is(err, fs.ErrNotExist) || !strings.HasSuffix(err.Error(), ": set TMPDIR") {
		t.Errorf("%v", err)
	}
}
