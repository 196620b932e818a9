// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

func TestUsedDevices(t *testing.T) {
	var used []string
	for line := range strings.Lines(`21 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw
22 21 0:19 / /proc rw - proc proc rw
23 21 0:42 / /data rw shared:2 master:3 - btrfs /dev/sdb rw,space_cache
24 21 8:1 /sub /bind rw - xfs /dev/root\040x rw
rubbish
Filename				Type		Size
/dev/dm-1                 partition	8388604
/swapfile file 1 0 -2
`) {
		used = append(used, usedDevices(line)...)
	}
	if want := []string{"259:1", "/dev/nvme0n1p1", "/dev/sdb", "8:1", "/dev/root\\040x", "/dev/dm-1"}; !slices.Equal(used, want) {
		t.Errorf("used %q, want %q", used, want)
	}
}

// namespace runs functions on a thread that has its own mount namespace, and returns a replacement for /proc in which
// "self" is that thread.
func namespace(t *testing.T) (proc string, on func(func() error)) {
	t.Helper()
	if os.Getuid() != 0 {
		need.Lacks(t, "root", "only root may mount")
	}
	proc = t.TempDir()
	do, done := make(chan func() error), make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		for f := range do {
			done <- f()
		}
	}()
	t.Cleanup(func() { close(do) })
	on = func(f func() error) {
		t.Helper()
		do <- f
		if err := <-done; errors.Is(err, unix.EPERM) || errors.Is(err, errChroot) {
			need.Lacks(t, "root", "no mount namespace for this test: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	on(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if errors.Is(err, unix.EINVAL) {
			return errChroot
		}
		if err != nil {
			return err
		}
		return os.Symlink(fmt.Sprintf("/proc/self/task/%d", unix.Gettid()), filepath.Join(proc, "self"))
	})
	return proc, on
}

// errChroot is the reason why a test cannot make mounts private.
var errChroot = errors.New("the root directory is no mount point, as in a chroot")

func TestWatchMounts(t *testing.T) {
	proc, on := namespace(t)
	tables, err := openMounts(proc)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTables(tables)
	dir := t.TempDir()
	mount := func(source string) {
		t.Helper()
		on(func() error { return unix.Mount(source, dir, "tmpfs", 0, "") })
	}
	unmount := func() { t.Helper(); on(func() error { return unix.Unmount(dir, 0) }) }
	mount("/dev/early") // between openMounts and listen

	ctx, cancel := context.WithCancel(t.Context())
	events, done := make(chan Event, 16), make(chan error, 1)
	go func() { done <- tables[0].listen(ctx, events) }()
	expect := func(what string) {
		t.Helper()
		select {
		case e := <-events:
			if e.Action != Mounts || e.Received.IsZero() {
				t.Errorf("%s: event %+v", what, e)
			}
		case err := <-done:
			t.Fatalf("%s: %v", what, err)
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no event", what)
		}
	}
	expect("mounted early")
	unmount()
	expect("unmounted")
	mount("no device") // no event
	unmount()
	mount("/dev/other")
	expect("mounted")
	unmount()
	expect("unmounted again")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("listen: %v", err)
	}
	if len(events) > 0 {
		t.Errorf("an event too many: %+v", <-events)
	}
}

// A mount also counts as a change if it uses no additional block device.
func TestWatchMountTable(t *testing.T) {
	proc, on := namespace(t)
	if err := os.Symlink("self", filepath.Join(proc, "1")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- WatchMountTable(ctx, proc, func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		})
	}()
	dir := t.TempDir()
	for seen := false; !seen; { // the first mounts may precede the opening of the table
		on(func() error { return unix.Mount(dir, dir, "", unix.MS_BIND, "") })
		select {
		case <-changes:
			seen = true
		case err := <-done:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("watch: %v", err)
	}
	if err := WatchMountTable(t.Context(), t.TempDir(), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without procfs: %v", err)
	}
}
