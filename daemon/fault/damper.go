// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"time"
)

const (
	// After failureLimit failures within failureWindow, a device stays Unhealthy until it has worked without a failure for
	// stablePeriod. A pod should wait for another device instead of getting one that fails repeatedly.
	failureLimit  = 4
	failureWindow = 10 * time.Minute
	stablePeriod  = 5 * time.Minute
)

// Damper keeps a device Unhealthy if it fails too often. The zero value represents a device that has never failed.
type Damper struct {
	failures     []time.Time // times of the failures within failureWindow
	unhealthy    bool
	last         string    // reason for the last failure
	healthySince time.Time // when the device became healthy again
	flapping     bool      // set if the device has failed too often
}

// Observe records a device's current fault, or "" if there is none. If a device without a fault is still not trusted, Observe
// returns the reason. Repeated calls with the same state have no further effect. If such a device has just become healthy, Observe
// calls the function "again" with the time until the caller must call Observe again.
func (d *Damper) Observe(reason string, now time.Time, again func(wait time.Duration)) (distrust string) {
	switch {
	case reason != "" && !d.unhealthy:
		d.failures = append(d.failures, now)
		for now.Sub(d.failures[0]) > failureWindow {
			d.failures = d.failures[1:]
		}
		d.flapping = d.flapping || len(d.failures) >= failureLimit
	case reason == "" && d.unhealthy:
		if d.healthySince = now; d.flapping {
			again(stablePeriod)
		}
	}
	d.unhealthy = reason != ""
	if d.unhealthy {
		d.last = reason
		return ""
	}
	if d.flapping && now.Sub(d.healthySince) >= stablePeriod {
		*d = Damper{}
	}
	if !d.flapping {
		return ""
	}
	return fmt.Sprintf("the device fails too often (last: %s) and must first stay healthy for %v", d.last, stablePeriod)
}
