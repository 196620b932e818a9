// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/liveness"
)

// pulse is the liveness of a loop that waits in reads of a file. A read deadline in the past ends the read. Without one
// nothing wakes up.
type pulse struct {
	liveness.Probe
	file *os.File // in the runtime's poller
}

func newPulse(file *os.File) *pulse {
	p := &pulse{file: file}
	p.Wake = p.wake
	return p
}

func (p *pulse) wake() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) }

// run repeats two steps until ctx ends, whose error it returns, or until one of them fails. It waits in the runtime's poller
// until try does not return EAGAIN, and calls then. While there is nothing to read, no thread waits and nothing wakes up.
// It may be called once.
func (p *pulse) run(ctx context.Context, what string, try func(fd int) error, then func() error) error {
	defer p.End()
	defer context.AfterFunc(ctx, p.wake)()
	conn, err := p.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for {
		waitErr := conn.Read(func(fd uintptr) bool {
			err = try(int(fd))
			return err != unix.EAGAIN
		})
		woken := p.woken(waitErr)
		if err = cmp.Or(waitErr, err); err == nil {
			err = then()
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !woken:
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// woken reports whether a wait has failed with err only because of a question or the end of ctx, and answers the question.
func (p *pulse) woken(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	_ = p.file.SetReadDeadline(time.Time{}) // before the question is taken, because the next one sets it again
	select {
	case answer := <-p.Asked():
		answer()
	default:
	}
	return true
}

// duplicate returns a descriptor for a file that systemd has passed. systemd passes descriptors that block. The own one is
// fit for the runtime's poller. f stays the caller's and may be closed.
func duplicate(f *os.File) (own int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	controlErr := conn.Control(func(fd uintptr) { own, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(controlErr, err); err == nil {
		err = unix.SetNonblock(own, true)
	}
	return own, err
}
