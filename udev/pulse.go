// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/metalplug/metalplug/internal/liveness"
)

// pulse is the liveness of a loop that waits in reads of a file. A read deadline in the past ends the read; without one
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

// begin has reads end with ctx. The loop calls end when it has ended.
func (p *pulse) begin(ctx context.Context) (end func()) {
	stop := context.AfterFunc(ctx, p.wake)
	return func() {
		stop()
		p.End()
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
	case answer := <-p.Asked():
		answer()
	default:
	}
	return true
}
