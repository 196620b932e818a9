// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"time"
)

const (
	// fallLimit failures within fallWindow make a device Unhealthy until it has worked without a failure for the duration
	// calm. A pod that waits for another device is better off than a pod whose device fails repeatedly.
	fallLimit  = 4
	fallWindow = 10 * time.Minute
	calm       = 5 * time.Minute
)

// Damper keeps a device Unhealthy if its health changes too often. The zero value and nil represent a device that was never
// unhealthy.
type Damper struct {
	falls  []time.Time // times within the window at which the device became unhealthy
	sick   bool
	last   string    // reason of the last failure
	well   time.Time // when the device became healthy again
	unruly bool      // the device has failed too often
}

// Observe records the current fault of a device, or "" for none. It returns why a device without a fault is not trusted, or
// "". Repeated calls with the same state have no further effect.
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
	return fmt.Sprintf("it fails too often (last: %s): it must stay healthy for %v", d.last, calm)
}

// Until returns the time at which the device is trusted again if it does not fail before then. The time is zero for a
// trusted device and for a faulty one.
func (d *Damper) Until() time.Time {
	if d == nil || !d.unruly || d.sick {
		return time.Time{}
	}
	return d.well.Add(calm)
}
