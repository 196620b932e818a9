// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Serve answers the one request on standard input, and blocks until that is done: for as long as the request allows and
// little more, whatever the device does.
func Serve() error { return exchange.Serve((&host{Tree: sysfs.At(""), kernel: theKernel()}).answer) }

// step is what is being done right now, in words that fit before "goes on".
type step struct{ text atomic.Value }

func (s *step) is(format string, args ...any) { s.text.Store(fmt.Sprintf(format, args...)) }

// String returns it; at first there is only a look.
func (s *step) String() string {
	if text, ok := s.text.Load().(string); ok {
		return text
	}
	return "looking at the device"
}

// answer makes an answer of a request. Where the kernel does not come back in time, the answer says so; what it is at
// then cannot be interrupted, and keeps this process, with its claims on the device, until it is over.
func (h *host) answer(message []byte) []byte {
	began := time.Now()
	r, err := ParseRequest(message)
	if err != nil {
		return Answer{Result: Malformed, Detail: err.Error()}.Encode()
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.Timeout)
	defer cancel()
	done := make(chan Answer, 1)
	go func() { done <- h.attempt(ctx, r) }()
	overdue := time.NewTimer(r.Timeout + grace)
	defer overdue.Stop()
	var a Answer
	select {
	case a = <-done:
	case <-overdue.C:
		a.Detail = fmt.Sprintf("not over after %v: %s cannot be interrupted and goes on", r.Timeout, &h.step)
		if a.Result = Late; r.Op != Probe {
			a.Result, a.Detail = Failed, a.Detail+"; allow more time"
		}
	}
	a.Took = time.Since(began).Truncate(time.Microsecond)
	return a.Encode()
}

// attempt never panics: a mistake of ours is a device whose state is not known.
func (h *host) attempt(ctx context.Context, r Request) (a Answer) {
	defer func() {
		if mistake := recover(); mistake != nil {
			a = Answer{Result: Failed, Detail: fmt.Sprintf("a mistake in %s: %v", Program, mistake)}
		}
	}()
	a.Result = OK
	if err := h.do(ctx, r, &a); err != nil {
		a.Result, a.Detail = resultOf(err), err.Error()
	}
	return a
}

// resultOf returns the result that an error is of; what nobody has given one is a failure.
func resultOf(err error) Result {
	var r Result
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, unix.EBUSY):
		return Busy
	case errors.Is(err, sysfs.ErrGone), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return Gone
	}
	return Failed
}

// do does what is asked, and notes in the answer what it finds.
func (h *host) do(ctx context.Context, r Request, a *Answer) error {
	if err := h.find(r); err != nil {
		return err
	}
	if r.Op == Probe {
		return h.probe(ctx, r, a)
	}
	unlock, err := h.only(r.SysPath)
	if err != nil {
		return err
	}
	defer unlock()
	if r.Op == Reset {
		return h.reset(ctx, r, a)
	}
	return h.erase(ctx, r, a)
}

// only makes this the only process of ours that does anything to a device, by a lock on its directory in sysfs.
func (h *host) only(sysPath string) (unlock func(), err error) {
	fd, err := h.open(h.Path(sysPath), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, openError(sysPath, err)
	}
	if err := h.flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		h.close(fd)
		return nil, errorf(Busy, "another request is at work on %s", sysPath)
	}
	return func() { h.close(fd) }, nil
}

// pause waits, less if the time is up; then it returns false.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
