// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Watch calls gone when cgroups of pods were removed, and so have no process left, until ctx ends. One call stands for all pods
// since the last one, and for events that were lost. It calls started once, when it misses no removal any more. root is where
// the cgroups are ("/sys/fs/cgroup"), of version 1 or 2.
//
// It sleeps until a cgroup comes or goes beside that of a pod. It is not an error if there is no cgroup of all pods yet.
func Watch(ctx context.Context, root string, started, gone func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK) // so that os.NewFile uses the poller
	if err != nil {
		return fmt.Errorf("watch cgroups: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.SetReadDeadline(time.Unix(1, 0)) })()
	w := watches{fd: fd, dirs: make(map[int]string)}
	var buf [64 << 10]byte
	for tell := started; ; {
		if err := w.look(root); err != nil {
			return err
		}
		if tell != nil {
			tell()
		}
		size, err := events.Read(buf[:])
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch cgroups: %w", err)
		}
		if tell = nil; w.removed(buf[:size]) {
			tell = gone
		}
	}
}

// watches are those on the directories in which a pod may come or go (inotify(7)), by watch descriptor.
//
// The kernel reports a cgroup that is removed to a watch on the directory above it alone. A watch on itself gets neither
// IN_DELETE_SELF nor IN_IGNORED, and stays (Linux 6.18, both versions, kernfs keeps the inode that is watched).
type watches struct {
	fd   int
	dirs map[int]string
}

// watched are the events that say that a directory has come or gone. IN_MODIFY is left out, as memory.events changes all the
// time.
const watched = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF |
	unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// look watches the directories that are there now, each before it is read, and no others.
func (w watches) look(root string) error {
	dir, err := hierarchy(root)
	if err != nil {
		return err
	}
	seen := make(map[int]bool)
	found := walk{pods: make(map[string][]string), visit: func(dir string) error {
		wd, err := unix.InotifyAddWatch(w.fd, dir, watched)
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: fs.inotify.max_user_watches is reached", err)
		}
		if err != nil {
			return &os.PathError{Op: "watch", Path: dir, Err: err}
		}
		w.dirs[wd], seen[wd] = dir, true
		return nil
	}}
	if err := found.below(dir, prefixes); err != nil {
		return fmt.Errorf("look for pods in %s: %w", root, err)
	}
	for wd := range w.dirs {
		if !seen[wd] {
			delete(w.dirs, wd)
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // EINVAL if it has ended by itself, as it does on a tmpfs
		}
	}
	return nil
}

// removed reports whether events, of struct inotify_event (include/uapi/linux/inotify.h), say or may say that the cgroup of a
// pod was removed. An event has WD, MASK, COOKIE and LEN, four bytes each, and LEN bytes of a name that ends with zeros.
func (w watches) removed(events []byte) (gone bool) {
	for len(events) >= unix.SizeofInotifyEvent {
		dir := w.dirs[int(int32(binary.NativeEndian.Uint32(events)))]
		mask := binary.NativeEndian.Uint32(events[4:])
		end := min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(events[12:])), len(events))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		_, pod := podUID(filepath.Base(dir), string(name))
		gone = gone || mask&unix.IN_Q_OVERFLOW != 0 || pod && mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0
		events = events[end:]
	}
	return gone
}
