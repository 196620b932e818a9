// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"time"
)

const (
	// fallLimit failures within fallWindow make a device Unhealthy until it has been healthy for calm. Pods are worse off with
	// a device that fails again and again than when they wait for another.
	fallLimit  = 4
	fallWindow = 10 * time.Minute
	calm       = 5 * time.Minute
)

// Damper keeps a device Unhealthy while its health changes often. The zero value and nil belong to a device that was never
// unhealthy.
type Damper struct {
	falls  []time.Time // when it became sick, none longer ago than the window
	sick   bool
	last   string    // why it was sick the last time
	well   time.Time // since when it is not
	unruly bool      // it has become sick too often
}

// Observe takes in the fault of a device, or empty. It returns why a device without a fault is not trusted, or empty. Among
// states that are the same only the first counts.
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
	return fmt.Sprintf("it fails too often (last: %s): it has to be well for %v", d.last, calm)
}

// Until returns when the device can be trusted again if nothing happens. It is zero for a trusted or faulty device.
func (d *Damper) Until() time.Time {
	if d == nil || !d.unruly || d.sick {
		return time.Time{}
	}
	return d.well.Add(calm)
}
