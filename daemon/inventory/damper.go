// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"time"
)

const (
	// fallLimit failures within fallWindow make a device Unhealthy until it has been well for calm: pods that are sent
	// to a device that fails again and again are worse off than those that wait for another.
	fallLimit  = 4
	fallWindow = 10 * time.Minute
	calm       = 5 * time.Minute
)

// damper keeps a device Unhealthy of which the health changes all the time. It knows only what it is told; the zero
// value and nil are that of a device that was never sick.
type damper struct {
	falls  []time.Time // when it became sick, none longer ago than the window
	sick   bool
	last   string    // why it was sick the last time
	well   time.Time // since when it is not
	unruly bool      // it has become sick too often
}

// observe takes in the state of a device, reason "" for well, and returns why it is not to be trusted though it is well;
// "": it is. Of states that are the same only the first counts.
func (d *damper) observe(reason string, now time.Time) (distrust string) {
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
		*d = damper{}
	}
	if !d.unruly {
		return ""
	}
	return fmt.Sprintf("it fails too often (last: %s): it has to be well for %v", d.last, calm)
}

// until returns when the device can be trusted again if nothing happens; zero: it is trusted, or sick.
func (d *damper) until() time.Time {
	if d == nil || !d.unruly || d.sick {
		return time.Time{}
	}
	return d.well.Add(calm)
}
