// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// notifier tells what comes and goes in some directories (inotify(7)).
//
// A cgroup that is removed is reported to a watch on the directory above it alone: a watch on itself gets neither
// IN_DELETE_SELF nor IN_IGNORED, and stays (Linux 6.18, both versions; kernfs keeps the inode that is watched). So
// whoever watches has to take the watch away, by [notifier.sweep].
type notifier struct {
	file *os.File
	dirs map[int]string // by watch descriptor
	seen map[int]bool   // added since the last sweep
}

// watched are the events that say that a directory has come or gone.
const watched = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF |
	unix.IN_MOVE_SELF | unix.IN_ONLYDIR

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK) // so that os.NewFile uses the poller
	if err != nil {
		return nil, fmt.Errorf("watch cgroups: %w", err)
	}
	return &notifier{os.NewFile(uintptr(fd), "inotify"), make(map[int]string), make(map[int]bool)}, nil
}

func (n *notifier) close() error { return n.file.Close() }

// control calls f with the descriptor, which stays in the poller.
func (n *notifier) control(f func(fd int) error) error {
	conn, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := conn.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(controlErr, err)
}

// add watches a directory; one that is watched already stays so. Another one of the same name is another directory.
func (n *notifier) add(dir string) error {
	return n.control(func(fd int) error {
		wd, err := unix.InotifyAddWatch(fd, dir, watched)
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: fs.inotify.max_user_watches is reached", err)
		}
		if err != nil {
			return &os.PathError{Op: "watch", Path: dir, Err: err}
		}
		n.dirs[wd], n.seen[wd] = dir, true
		return nil
	})
}

// sweep ends the watches on all directories that were not added since the last time.
func (n *notifier) sweep() error {
	seen := n.seen
	n.seen = make(map[int]bool)
	return n.control(func(fd int) error {
		for wd := range n.dirs {
			if !seen[wd] {
				delete(n.dirs, wd)
				unix.InotifyRmWatch(fd, uint32(wd)) // EINVAL: it has ended by itself, as it does on a tmpfs
			}
		}
		return nil
	})
}

// change is what has come or gone; after an overflow of the queue, and for a watched directory itself, without a name.
type change struct{ dir, name string }

// wait blocks until something has come or gone, and returns that. The error is that of ctx when it ends.
func (n *notifier) wait(ctx context.Context) ([]change, error) {
	if err := n.file.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("watch cgroups: %w", err)
	}
	defer context.AfterFunc(ctx, func() { n.file.SetReadDeadline(time.Unix(1, 0)) })()
	var buf [64 << 10]byte
	for {
		size, err := n.file.Read(buf[:])
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("watch cgroups: %w", err)
		}
		if changes := n.parse(buf[:size]); len(changes) > 0 {
			return changes, nil
		}
	}
}

// pending returns without blocking what has come or gone already.
func (n *notifier) pending() ([]change, error) {
	conn, err := n.file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("watch cgroups: %w", err)
	}
	var changes []change
	var buf [64 << 10]byte
	for {
		var size int
		var readErr error
		err := conn.Read(func(fd uintptr) bool {
			size, readErr = unix.Read(int(fd), buf[:])
			return true
		})
		switch err := cmp.Or(err, readErr); {
		case errors.Is(err, unix.EAGAIN):
			return changes, nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return nil, fmt.Errorf("watch cgroups: %w", err)
		case err == nil:
			changes = append(changes, n.parse(buf[:size])...)
		}
	}
}

// parse reads struct inotify_event (include/uapi/linux/inotify.h): WD, MASK, COOKIE and LEN, four bytes each, and LEN
// bytes of a name that ends with zeros. That a watch has ended is no change.
func (n *notifier) parse(events []byte) []change {
	var changes []change
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int(int32(binary.NativeEndian.Uint32(events)))
		mask := binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:min(end, len(events))], []byte{0})
		events = events[min(end, len(events)):]
		if mask&unix.IN_IGNORED == 0 {
			changes = append(changes, change{n.dirs[wd], string(name)})
		}
	}
	return changes
}
