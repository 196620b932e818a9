// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// each repeats two steps until ctx ends, whose error it returns, or until one of them fails. It waits in the runtime's poller
// until try does not return EAGAIN, and calls then. While there is nothing to read, no thread waits and nothing wakes up.
// It may be called once for a file.
func each(ctx context.Context, what string, file *os.File, try func(fd int) error, then func() error) error {
	defer interrupt(ctx, file)()
	conn, err := file.SyscallConn()
	for err == nil {
		waitErr := conn.Read(func(fd uintptr) bool {
			err = try(int(fd))
			return err != unix.EAGAIN
		})
		if err = cmp.Or(waitErr, err); err == nil {
			err = then()
		}
	}
	return cmp.Or(ctx.Err(), fmt.Errorf("%s: %w", what, err))
}

// interrupt ends the read of a file when ctx ends, by a deadline in the past. stop prevents that.
func interrupt(ctx context.Context, file *os.File) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
}

// duplicate returns a descriptor for a file that systemd has passed. systemd passes descriptors that block. The own one is
// fit for the runtime's poller. f stays the caller's and may be closed.
func duplicate(f *os.File) (own int, err error) {
	if own, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return -1, err
	}
	return own, unix.SetNonblock(own, true)
}
