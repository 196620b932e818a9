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

// pollEach calls the functions read and handle in turn. pollEach returns the context's error when ctx ends, or the first error
// from the two functions. The function read returns EAGAIN if there is nothing to read. In that case, pollEach waits in the
// runtime's poller before it calls read again. Until there is something to read, pollEach blocks no thread, and the process does
// not wake up. pollEach may be called only once for each file.
func pollEach(ctx context.Context, what string, file *os.File, read func(fd int) error, handle func() error) error {
	defer interrupt(ctx, file)()
	conn, err := file.SyscallConn()
	for err == nil {
		waitErr := conn.Read(func(fd uintptr) bool {
			err = read(int(fd))
			return err != unix.EAGAIN
		})
		if err = cmp.Or(waitErr, err); err == nil {
			err = handle()
		}
	}
	return cmp.Or(ctx.Err(), fmt.Errorf("%s: %w", what, err))
}

// interrupt ends reads from a file when ctx ends, by setting a deadline in the past. After a call to the function stop, the end
// of ctx no longer affects the file.
func interrupt(ctx context.Context, file *os.File) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
}

// duplicate returns a new descriptor for a file that systemd has passed. Descriptors from systemd are in blocking mode. duplicate
// sets the file to non-blocking mode for both descriptors, because the runtime's poller requires this mode. The caller still owns
// f and may close it.
func duplicate(f *os.File) (own int, err error) {
	if own, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return -1, err
	}
	return own, unix.SetNonblock(own, true)
}
