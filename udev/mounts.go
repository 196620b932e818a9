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

// WatchMounts sends an [Event] with the action [Mounts] whenever the set of block devices changes that this host has
// mounted or swaps to, until ctx ends, whose error it then returns. What is in use at first is no event.
//
// proc is where procfs is. The mounts are those of this process and, where it may be read, of process 1, for a unit's
// mount namespace is not the host's. Nothing wakes up until the kernel reports a change.
func WatchMounts(ctx context.Context, proc string, events chan<- Event) error {
	w, err := openMounts(proc)
	if err != nil {
		return err
	}
	defer w.close()
	return w.listen(ctx, events)
}

// mountWatch waits for changes of a few files in procfs. The kernel marks a change since the last look, for each open
// file, as an exceptional condition (poll(2), POLLPRI; mounts_poll in fs/proc_namespace.c, swaps_poll in
// mm/swapfile.c). An epoll of those is itself a file on which the runtime's poller can wait.
type mountWatch struct {
	epoll *os.File
	pulse pulse
	files []*os.File
	used  map[string]struct{} // as last reported
}

// openMounts also takes down what is in use now, so that no change from here on is missed.
func openMounts(proc string) (_ *mountWatch, err error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch mounts: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // tells os.NewFile to use the poller; fcntl(2) cannot refuse that
	epoll := os.NewFile(uintptr(fd), "epoll")
	w := &mountWatch{epoll: epoll, pulse: newPulse(epoll)}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	for _, name := range []string{"self/mountinfo", "1/mountinfo", "swaps"} {
		err := w.add(fd, filepath.Join(proc, name))
		if err != nil && name == "self/mountinfo" {
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

func (w *mountWatch) listen(ctx context.Context, events chan<- Event) error {
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
		if err := send(ctx, Event{Action: Mounts, Received: time.Now()}, events); err != nil {
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
		addUsed(used, string(text), filepath.Base(f.Name()) == "swaps")
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
