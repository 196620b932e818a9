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

// absentInterval is how often all devices are enumerated while udevd is absent, because there are no events.
const absentInterval = 5 * time.Second

// udevdCgroup is the file cgroup.events of udevd's unit. Its key "populated" shows whether the cgroup has a process,
// and each change of it modifies the file ("[Un]populated Notification" in the kernel's
// Documentation/admin-guide/cgroup-v2.rst).
const udevdCgroup = "system.slice/systemd-udevd.service/cgroup.events"

// udevdWatch notices when udevd ends. Events that occur while udevd does not run are lost, because udevd does not send
// them after a restart. The watch sleeps while udevd runs.
type udevdWatch struct {
	cgroup   string // mount point of cgroup v2
	interval time.Duration
	fd       int      // descriptor of inotify
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

// running reports whether udevd's cgroup has a process. If systemd does not use cgroup v2, this is unknown, and udevd counts
// as running.
func (w *udevdWatch) running() bool {
	if _, err := os.Stat(filepath.Join(w.cgroup, "system.slice")); err != nil {
		return true
	}
	text, err := os.ReadFile(filepath.Join(w.cgroup, udevdCgroup))
	return err == nil && strings.Contains("\n"+string(text), "\npopulated 1")
}

// listen sends [Missed] when udevd ends, at intervals while udevd is absent, and when it returns. When ctx ends, it
// returns the error of ctx.
func (w *udevdWatch) listen(ctx context.Context, events chan<- Event) error {
	defer interrupt(ctx, w.inotify)()
	buf := make([]byte, 4<<10) // room for at least one event, see inotify(7)
	for changed := false; ; changed = true {
		w.arm()
		var limit time.Time
		if absent := !w.running(); absent || changed { // from now on, changes wake up the watch
			if err := send(ctx, Event{Action: Missed, Received: time.Now()}, events); err != nil {
				return err
			}
			if absent {
				limit = time.Now().Add(w.interval)
			}
		}
		_ = w.inotify.SetReadDeadline(limit)
		if ctx.Err() != nil { // ctx may have ended and set the deadline already
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

// arm watches the cgroup if it exists, otherwise the directory in which it will appear. If the kernel allows no more
// watches, listen checks at intervals whether udevd has returned, and does not notice when udevd ends.
func (w *udevdWatch) arm() {
	file := filepath.Join(w.cgroup, udevdCgroup)
	for range 2 { // the cgroup may appear before its directory is watched
		if _, err := unix.InotifyAddWatch(w.fd, file, unix.IN_MODIFY|unix.IN_DELETE_SELF); err == nil {
			return
		}
		_, _ = unix.InotifyAddWatch(w.fd, filepath.Dir(filepath.Dir(file)), unix.IN_CREATE|unix.IN_ONESHOT)
	}
}
