// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// pulse lets a loop that waits in reads of a file show that it goes round. A read deadline in the past ends the read;
// without one nothing wakes up.
type pulse struct {
	file  *os.File // in the runtime's poller
	asked chan chan struct{}
	ended chan struct{} // closed with the loop
}

func newPulse(file *os.File) pulse {
	return pulse{file, make(chan chan struct{}, 1), make(chan struct{})}
}

func (p *pulse) wake() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) }

// begin has reads end with ctx. The loop calls end when it has ended.
func (p *pulse) begin(ctx context.Context) (end func()) {
	stop := context.AfterFunc(ctx, p.wake)
	return func() {
		stop()
		close(p.ended)
	}
}

// woken tells whether a read has failed with err only since it was to end, and answers whoever has asked. The loop has to
// look at its context after that.
func (p *pulse) woken(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	_ = p.file.SetReadDeadline(time.Time{}) // before the question is taken: the next one sets it again
	select {
	case answer := <-p.asked:
		close(answer)
	default:
	}
	return true
}

// alive returns once the loop has gone round, or has ended, or with the error of ctx.
func (p *pulse) alive(ctx context.Context, what string) error {
	answer := make(chan struct{})
	select {
	case p.asked <- answer:
		p.wake()
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ask the %s: %w", what, ctx.Err())
	}
	select {
	case <-answer:
		return nil
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the %s: %w", what, ctx.Err())
	}
}
