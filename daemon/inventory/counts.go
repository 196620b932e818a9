// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync/atomic"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// Counts are the numbers of events and enumerations since the inventory was made.
type Counts struct {
	Events    uint64    `json:"received"`      // of udevd
	Overflows uint64    `json:"overflows"`     // times that events were lost
	Resyncs   uint64    `json:"resyncs"`       // enumerations after the first, by the audit, an overflow or new rules
	LastEvent time.Time `json:"last,omitzero"` // when the last event arrived, or zero
}

// counters are the counts while they are counted, by the loop alone.
type counters struct {
	events, overflows, resyncs atomic.Uint64
	last                       atomic.Int64 // Unix time in nanoseconds, or 0
}

// Counts returns the counts. It does not wait.
func (i *Inventory) Counts() Counts {
	c := Counts{Events: i.counts.events.Load(), Overflows: i.counts.overflows.Load(), Resyncs: i.counts.resyncs.Load()}
	if last := i.counts.last.Load(); last != 0 {
		c.LastEvent = time.Unix(0, last)
	}
	return c
}

// event counts an event. Mounts and messages of drivers do not come from udevd.
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
