// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/directory"
	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/integration/need"
)

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
	w, err := directory.Open("/state")
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
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		e := <-w.Events
		if directory.Name(e) != step.name || w.Itself(e) != step.itself {
			t.Errorf("an event of %s, itself %t, want %s, %t", directory.Name(e), w.Itself(e), step.name, step.itself)
		}
		inRoot(t, root, w.Rearm)
	}
}

// TestMain checks that no test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
