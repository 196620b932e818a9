// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// WatchMountTable calls changed after each change of the mounts of process 1 until ctx ends, and then returns the error of ctx.
// proc is where procfs is. Nothing wakes up until the kernel reports a change.
func WatchMountTable(ctx context.Context, proc string, changed func()) error {
	w, err := openTables(proc, addLines, "1/mountinfo")
	if err != nil {
		return err
	}
	defer w.close()
	return w.each(ctx, func() error {
		changed()
		return nil
	})
}

// mountWatch waits for changes of a few files in procfs. The kernel marks a change since the last look, for each open
// file, as an exceptional condition (poll(2), POLLPRI; mounts_poll in fs/proc_namespace.c, swaps_poll in
// mm/swapfile.c). An epoll of those is itself a file on which the runtime's poller can wait.
type mountWatch struct {
	epoll *os.File
	pulse *pulse
	files []*os.File
	parse func(used map[string]struct{}, text string, swaps bool)
	used  map[string]struct{} // as last reported
}

// openMounts watches the mounts of this process and, where it may read them, of process 1: a unit has a mount namespace of
// its own. proc is where procfs is.
func openMounts(proc string) (*mountWatch, error) {
	return openTables(proc, addUsed, "self/mountinfo", "1/mountinfo", "swaps")
}

// openTables opens the first of the files, and those of the others that it can. It also reads them, so that no change from
// here on is missed.
func openTables(proc string, parse func(map[string]struct{}, string, bool), names ...string) (_ *mountWatch, err error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch mounts: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // tells os.NewFile to use the poller; fcntl(2) cannot refuse that
	epoll := os.NewFile(uintptr(fd), "epoll")
	w := &mountWatch{epoll: epoll, pulse: newPulse(epoll), parse: parse}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	for i, name := range names {
		err := w.add(fd, filepath.Join(proc, name))
		if err != nil && i == 0 {
			return nil, fmt.Errorf("watch mounts: %w", err)
		}
	}
	if w.used, err = w.read(); err != nil {
		return nil, fmt.Errorf("watch mounts: %w", err)
	}
	return w, nil
}

func (w *mountWatch) add(epoll int, name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: int32(fd)}); err != nil {
		unix.Close(fd)
		return &os.PathError{Op: "poll", Path: name, Err: err}
	}
	w.files = append(w.files, os.NewFile(uintptr(fd), name))
	return nil
}

func (w *mountWatch) close() {
	for _, f := range append(w.files, w.epoll) {
		f.Close()
	}
}

// listen sends an [Event] with the action [Mounts] after each change of the set of block devices that this host has mounted
// or swaps to. It returns the error of ctx. The devices in use at first are not an event.
func (w *mountWatch) listen(ctx context.Context, events chan<- Event) error {
	return w.each(ctx, func() error { return send(ctx, Event{Action: Mounts, Received: time.Now()}, events) })
}

// each calls report after each change.
func (w *mountWatch) each(ctx context.Context, report func() error) error {
	defer w.pulse.begin(ctx)()
	for {
		used, err := w.changed()
		woken := w.pulse.woken(err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if woken {
			continue
		}
		if err != nil {
			return fmt.Errorf("watch mounts: %w", err)
		}
		w.used = used
		if err := report(); err != nil {
			return err
		}
	}
}

// changed waits until the set is another than the one last reported.
//
// The files are read again whenever the poller wakes up, and the epoll is never asked which of them it was: to look for
// the mark is to clear it, and the runtime's own epoll has done that already.
func (w *mountWatch) changed() (used map[string]struct{}, err error) {
	conn, err := w.epoll.SyscallConn()
	if err != nil {
		return nil, err
	}
	waitErr := conn.Read(func(uintptr) bool {
		used, err = w.read()
		return err != nil || !maps.Equal(used, w.used)
	})
	return used, errors.Join(waitErr, err)
}

// read returns the block devices in use: MAJOR:MINOR of what is mounted, and the names below /dev of what is mounted or
// swapped to.
func (w *mountWatch) read() (map[string]struct{}, error) {
	used := make(map[string]struct{})
	for _, f := range w.files {
		// From its beginning; the kernel makes the text anew.
		text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<62))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
		w.parse(used, string(text), filepath.Base(f.Name()) == "swaps")
	}
	return used, nil
}

// addUsed adds the devices of a text in the format of /proc/swaps or /proc/PID/mountinfo (proc_pid_mountinfo(5)).
func addUsed(used map[string]struct{}, text string, swaps bool) {
	for line := range strings.Lines(text) {
		source := line
		if !swaps {
			mount, rest, _ := strings.Cut(line, " - ")
			fields := strings.Fields(mount)
			if len(fields) > 2 && !strings.HasPrefix(fields[2], "0:") { // 0: no block device, such as tmpfs or btrfs
				used[fields[2]] = struct{}{}
			}
			_, source, _ = strings.Cut(rest, " ") // behind the type of the file system
		}
		if name, _, _ := strings.Cut(strings.TrimSpace(source), " "); strings.HasPrefix(name, "/dev/") {
			used[name] = struct{}{}
		}
	}
}

// addLines adds each line of a text.
func addLines(used map[string]struct{}, text string, _ bool) {
	for line := range strings.Lines(text) {
		used[line] = struct{}{}
	}
}
