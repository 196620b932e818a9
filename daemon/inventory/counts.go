// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync/atomic"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// Counts are what an inventory has taken in since it was made.
type Counts struct {
	Events    uint64    `json:"received"`      // of udevd
	Overflows uint64    `json:"overflows"`     // times that events were lost
	Resyncs   uint64    `json:"resyncs"`       // enumerations after the first: at the audit, after an overflow, for new rules
	LastEvent time.Time `json:"last,omitzero"` // when the last event arrived; zero: none has
}

// counters are the counts while they are counted, by the loop alone.
type counters struct {
	events, overflows, resyncs atomic.Uint64
	last                       atomic.Int64 // Unix time in nanoseconds; 0: none
}

// Counts returns the counts. It does not wait.
func (i *Inventory) Counts() Counts {
	c := Counts{Events: i.counts.events.Load(), Overflows: i.counts.overflows.Load(), Resyncs: i.counts.resyncs.Load()}
	if last := i.counts.last.Load(); last != 0 {
		c.LastEvent = time.Unix(0, last)
	}
	return c
}

// event counts an event. What is mounted and what drivers log is none of udevd's.
func (c *counters) event(e udev.Event) {
	switch e.Action {
	case udev.Overflow:
		c.overflows.Add(1)
	case udev.Missed, udev.Mounts, udev.Logged:
	default:
		c.events.Add(1)
		if !e.Received.IsZero() {
			c.last.Store(e.Received.UnixNano())
		}
	}
}
