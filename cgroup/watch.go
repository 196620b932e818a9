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

// Watch calls the function "gone" each time pod cgroups have been removed, until ctx ends. A removed cgroup contains no
// processes. One call covers all removals since the last call, including those whose events were lost. Watch calls the function
// "started" once. After this call, Watch misses no removal. The parameter root is the mount point of the cgroup file system
// ("/sys/fs/cgroup"), version 1 or 2.
//
// Watch sleeps until a cgroup appears or vanishes in a directory that contains pod cgroups. A missing parent cgroup of all pods
// is not an error.
func Watch(ctx context.Context, root string, started, gone func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK) // with IN_NONBLOCK, os.NewFile uses the runtime's poller
	if err != nil {
		return fmt.Errorf("watch cgroups: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.SetReadDeadline(time.Unix(1, 0)) })()
	w := watches{fd: fd, dirs: make(map[int]string)}
	var buf [64 << 10]byte
	for notify := started; ; {
		if err := w.look(root); err != nil {
			return err
		}
		if notify != nil {
			notify()
		}
		size, err := events.Read(buf[:])
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch cgroups: %w", err)
		}
		if notify = nil; w.podRemoved(buf[:size]) {
			notify = gone
		}
	}
}

// watches contains the inotify watches on directories where pod cgroups may appear or vanish (inotify(7)). The keys are watch
// descriptors.
//
// The kernel reports a cgroup's removal only to a watch on its parent directory. A watch on the cgroup itself receives neither
// IN_DELETE_SELF nor IN_IGNORED. The watch does not end, because kernfs keeps the watched inode (Linux 6.18, both cgroup
// versions).
type watches struct {
	fd   int
	dirs map[int]string
}

// watched lists the events for directories that appear or vanish. IN_MODIFY is not included, because memory.events
// changes all the time.
const watched = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF |
	unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// look adds watches on the directories that exist now, and removes all other watches. look adds the watch on a directory before
// it reads the directory, so that it misses no change.
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
	if err := found.search(dir, watchDepth); err != nil {
		return fmt.Errorf("find pods in %s: %w", root, err)
	}
	for wd := range w.dirs {
		if !seen[wd] {
			delete(w.dirs, wd)
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // EINVAL means that the watch has already ended, as happens on a tmpfs
		}
	}
	return nil
}

// podRemoved reports whether a pod's cgroup may have been removed, according to the given events. Each event is a struct
// inotify_event (include/uapi/linux/inotify.h). Its fields are WD, MASK, COOKIE and LEN, four bytes each, followed by a
// zero-padded name of LEN bytes.
func (w watches) podRemoved(events []byte) (gone bool) {
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
