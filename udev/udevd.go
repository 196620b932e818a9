// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// absentInterval is the interval between two enumerations of all devices while udevd is not running and sends no events.
const absentInterval = 5 * time.Second

// udevdCgroup is the file cgroup.events in the cgroup of udevd's unit. The key "populated" shows whether the cgroup contains a
// process. The kernel modifies the file when this key changes ("[Un]populated Notification" in the kernel's
// Documentation/admin-guide/cgroup-v2.rst).
const udevdCgroup = "system.slice/systemd-udevd.service/cgroup.events"

// udevdWatch detects when udevd ends. Events that occur while udevd is not running are lost, because udevd does not send them
// later. The watch sleeps while udevd is running.
type udevdWatch struct {
	cgroup   string // mount point of cgroup v2
	interval time.Duration
	fd       int      // inotify descriptor
	inotify  *os.File // the same descriptor, for blocking reads
}

func openUdevdWatch(cgroup string) (*udevdWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch udevd: %w", err)
	}
	return &udevdWatch{cgroup: cgroup, interval: absentInterval, fd: fd, inotify: os.NewFile(uintptr(fd), "inotify")}, nil
}

func (w *udevdWatch) close() { w.inotify.Close() }

// isRunning reports whether udevd's cgroup contains a process. isRunning also returns true if systemd does not use cgroup v2,
// because udevd's cgroup is then not at the expected path.
func (w *udevdWatch) isRunning() bool {
	if _, err := os.Stat(filepath.Join(w.cgroup, "system.slice")); err != nil {
		return true
	}
	text, err := os.ReadFile(filepath.Join(w.cgroup, udevdCgroup))
	return err == nil && strings.Contains("\n"+string(text), "\npopulated 1")
}

// listen sends [Missed] when udevd ends and when udevd runs again. While udevd is not running, listen sends [Missed] at regular
// intervals. When ctx ends, listen returns the context's error.
func (w *udevdWatch) listen(ctx context.Context, events chan<- Event) error {
	defer interrupt(ctx, w.inotify)()
	buf := make([]byte, 4<<10) // room for at least one event, see inotify(7)
	for changed := false; ; changed = true {
		w.addWatch()
		var limit time.Time
		if absent := !w.isRunning(); absent || changed { // checked after addWatch, so that no change is missed
			if err := send(ctx, Event{Action: Missed, Received: time.Now()}, events); err != nil {
				return err
			}
			if absent {
				limit = time.Now().Add(w.interval)
			}
		}
		_ = w.inotify.SetReadDeadline(limit)
		if ctx.Err() != nil { // the deadline above may have replaced the one from the function interrupt, which ends this loop
			return ctx.Err()
		}
		_, err := w.inotify.Read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("watch udevd: %w", err)
		}
	}
}

// addWatch watches udevd's cgroup if the cgroup exists. Otherwise, addWatch watches the directory where the cgroup will appear.
// If the kernel allows no more watches, listen does not notice when udevd ends, but still checks at regular intervals whether
// udevd is running again.
func (w *udevdWatch) addWatch() {
	file := filepath.Join(w.cgroup, udevdCgroup)
	for range 2 { // the cgroup may appear before the directory above it is watched
		if _, err := unix.InotifyAddWatch(w.fd, file, unix.IN_MODIFY|unix.IN_DELETE_SELF); err == nil {
			return
		}
		_, _ = unix.InotifyAddWatch(w.fd, filepath.Dir(filepath.Dir(file)), unix.IN_CREATE|unix.IN_ONESHOT)
	}
}
