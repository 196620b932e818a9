// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
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
	w, err := openTables(proc, func(line string) []string { return []string{line} }, "1/mountinfo")
	if err != nil {
		return err
	}
	defer w.close()
	return w.each(ctx, func() error {
		changed()
		return nil
	})
}

// mountWatch waits for changes of a few files in procfs. The kernel marks a change since the last look, for each open file,
// as an exceptional condition (POLLPRI in poll(2), mounts_poll in fs/proc_namespace.c, swaps_poll in mm/swapfile.c). An epoll
// of those is itself a file on which the runtime's poller can wait.
type mountWatch struct {
	epoll *os.File
	pulse *pulse
	files []*os.File
	keys  func(line string) []string // by which a change is known
	used  map[string]struct{}        // the keys as last reported
}

// openMounts watches the mounts of this process and, where it may read them, of process 1, because a unit has a mount
// namespace of its own. proc is where procfs is.
func openMounts(proc string) (*mountWatch, error) {
	return openTables(proc, usedDevices, "self/mountinfo", "1/mountinfo", "swaps")
}

// openTables opens the first of the files, and those of the others that it can. It also reads them, so that no change from
// here on is missed.
func openTables(proc string, keys func(string) []string, names ...string) (*mountWatch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch mounts: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // for the poller of os.NewFile, fcntl(2) cannot refuse that
	epoll := os.NewFile(uintptr(fd), "epoll")
	w := &mountWatch{epoll: epoll, pulse: newPulse(epoll), keys: keys}
	for i, name := range names {
		if addErr := w.add(fd, filepath.Join(proc, name)); addErr != nil && i == 0 {
			err = addErr
		}
	}
	if err == nil {
		w.used, err = w.read()
	}
	if err != nil {
		w.close()
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
//
// It reads the files again whenever the poller wakes up, and never asks the epoll which of them changed. The runtime's own
// epoll has looked for the mark, and so has cleared it.
func (w *mountWatch) each(ctx context.Context, report func() error) error {
	var used map[string]struct{}
	return w.pulse.run(ctx, "watch mounts", func(int) (err error) {
		if used, err = w.read(); err == nil && maps.Equal(used, w.used) {
			err = unix.EAGAIN
		}
		return err
	}, func() error {
		w.used = used
		return report()
	})
}

// read returns the keys of all lines.
func (w *mountWatch) read() (map[string]struct{}, error) {
	used := make(map[string]struct{})
	for _, f := range w.files {
		// From its beginning, where the kernel makes a new text.
		text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<62))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
		for line := range strings.Lines(string(text)) {
			for _, key := range w.keys(line) {
				used[key] = struct{}{}
			}
		}
	}
	return used, nil
}

// usedDevices returns the block devices in a line of /proc/swaps or /proc/PID/mountinfo (proc_pid_mountinfo(5)). It returns
// MAJOR:MINOR of what is mounted, and the name below /dev of what is mounted or swapped to.
func usedDevices(line string) (used []string) {
	source := line
	if mount, rest, ok := strings.Cut(line, " - "); ok {
		if fields := strings.Fields(mount); len(fields) > 2 && !strings.HasPrefix(fields[2], "0:") { // major 0 is tmpfs, btrfs and others
			used = append(used, fields[2])
		}
		_, source, _ = strings.Cut(rest, " ") // behind the type of the file system
	}
	if name, _, _ := strings.Cut(strings.TrimSpace(source), " "); strings.HasPrefix(name, "/dev/") {
		used = append(used, name)
	}
	return used
}
