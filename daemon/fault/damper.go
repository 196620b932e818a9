// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"time"
)

const (
	// After fallLimit failures within fallWindow, a device stays Unhealthy until it has worked without a failure for the duration
	// calm. A pod should wait for another device instead of getting one that fails repeatedly.
	fallLimit  = 4
	fallWindow = 10 * time.Minute
	calm       = 5 * time.Minute
)

// Damper keeps a device Unhealthy if the device fails too often. The zero value stands for a device that has never failed. The
// method Until may be called on nil.
type Damper struct {
	falls  []time.Time // times of the failures within fallWindow
	sick   bool
	last   string    // reason for the last failure
	well   time.Time // when the device became healthy again
	unruly bool      // set if the device has failed too often
}

// Observe records the current fault of a device, or "" if there is none. If a device without a fault is still not trusted,
// Observe returns the reason. Repeated calls with the same state have no further effect.
func (d *Damper) Observe(reason string, now time.Time) (distrust string) {
	switch {
	case reason != "" && !d.sick:
		d.falls = append(d.falls, now)
		for now.Sub(d.falls[0]) > fallWindow {
			d.falls = d.falls[1:]
		}
		d.unruly = d.unruly || len(d.falls) >= fallLimit
	case reason == "" && d.sick:
		d.well = now
	}
	d.sick = reason != ""
	if d.sick {
		d.last = reason
		return ""
	}
	if d.unruly && now.Sub(d.well) >= calm {
		*d = Damper{}
	}
	if !d.unruly {
		return ""
	}
	return fmt.Sprintf("the device fails too often (last: %s) and must first stay healthy for %v", d.last, calm)
}

// Until returns the time when metalplug trusts the device again. A failure before that time postpones the time. The time is zero
// if the device is trusted or faulty now.
func (d *Damper) Until() time.Time {
	if d == nil || !d.unruly || d.sick {
		return time.Time{}
	}
	return d.well.Add(calm)
}
