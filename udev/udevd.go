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

// absentInterval is how often everything is to be enumerated while there is no udevd, since no event comes.
const absentInterval = 5 * time.Second

// udevdCgroup is the file cgroup.events of udevd's unit. Its key "populated" says whether a process is in the cgroup, and a
// change modifies the file ("[Un]populated Notification" in the kernel's Documentation/admin-guide/cgroup-v2.rst).
const udevdCgroup = "system.slice/systemd-udevd.service/cgroup.events"

// udevdWatch notices that udevd ends. Events of that time never come, because udevd does not send them when it is back.
// Nothing wakes up while udevd runs.
type udevdWatch struct {
	cgroup   string // where cgroup v2 is
	run      string // where udevd keeps its state, in the directory udev
	interval time.Duration
	fd       int      // of inotify
	inotify  *os.File // for reads that wait
}

func openUdevdWatch(cgroup, run string) (*udevdWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch udevd: %w", err)
	}
	return &udevdWatch{cgroup: cgroup, run: run, interval: absentInterval, fd: fd, inotify: os.NewFile(uintptr(fd), "inotify")}, nil
}

func (w *udevdWatch) close() { w.inotify.Close() }

// running reports whether udevd's cgroup has a process. Where systemd has no cgroup v2, the files of udevd tell. The sandbox
// of the unit hides the control socket, since udevd obeys every process of uid 0 there. The database is there permanently.
func (w *udevdWatch) running() bool {
	if _, err := os.Stat(filepath.Join(w.cgroup, "system.slice")); err == nil {
		text, err := os.ReadFile(filepath.Join(w.cgroup, udevdCgroup))
		return err == nil && strings.Contains("\n"+string(text), "\npopulated 1")
	}
	for _, name := range [...]string{"udev/control", "udev/data"} {
		if _, err := os.Lstat(filepath.Join(w.run, name)); err == nil {
			return true
		}
	}
	return false
}

// listen sends [Missed] when udevd ends and when it is back, and at intervals in between, until ctx ends, whose error it then
// returns.
func (w *udevdWatch) listen(ctx context.Context, events chan<- Event) error {
	defer interrupt(ctx, w.inotify)()
	buf := make([]byte, 4<<10) // room for at least one event, see inotify(7)
	for changed := false; ; changed = true {
		w.arm()
		var limit time.Time
		if absent := !w.running(); absent || changed { // from here on, the watch notices a change
			if err := send(ctx, Event{Action: Missed, Received: time.Now()}, events); err != nil {
				return err
			}
			if absent {
				limit = time.Now().Add(w.interval)
			}
		}
		_ = w.inotify.SetReadDeadline(limit)
		if ctx.Err() != nil { // its end may have set the deadline before
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

// arm watches the cgroup that is there now, or else the directory in which it appears. Where the kernel allows no more
// watches, udevd is looked for at intervals while it is absent, and its end is not noticed.
func (w *udevdWatch) arm() {
	file := filepath.Join(w.cgroup, udevdCgroup)
	for range 2 { // the cgroup may appear before the watch of the directory is there
		if _, err := unix.InotifyAddWatch(w.fd, file, unix.IN_MODIFY|unix.IN_DELETE_SELF); err == nil {
			return
		}
		_, _ = unix.InotifyAddWatch(w.fd, filepath.Dir(filepath.Dir(file)), unix.IN_CREATE|unix.IN_ONESHOT)
	}
}
