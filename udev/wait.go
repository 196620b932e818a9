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

// pollEach calls the functions "read" and "handle" in turn. pollEach returns the context's error when ctx ends, or the first
// error from the two functions. If "read" returns EAGAIN, there is nothing to read, so pollEach waits in the runtime's poller
// before it calls "read" again. This wait blocks no thread and does not wake up the process. pollEach may be called only once for
// each file.
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

// interrupt sets a deadline in the past when ctx ends, which ends reads from the file. After a call to the function "stop", the
// end of ctx no longer affects the file.
func interrupt(ctx context.Context, file *os.File) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
}

// duplicate returns a new descriptor for a file that systemd has passed, and sets the file to non-blocking mode, which the
// runtime's poller requires. Both descriptors share this mode. The caller still owns f and may close it.
func duplicate(f *os.File) (own int, err error) {
	if own, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return -1, err
	}
	return own, unix.SetNonblock(own, true)
}
