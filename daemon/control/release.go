// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// TimeReleases measures the time from the release of a device until the device is offered again. TimeReleases calls the function
// ready once, and runs until ctx ends. The error is always nil.
func (s *Server) TimeReleases(ctx context.Context, ready func()) error {
	ready()
	released := make(releases)
	for {
		snapshot, changed := s.Inventory.Snapshot()
		released = released.next(snapshot, time.Now(), func(took time.Duration) { s.offerTime.Observe(took.Seconds()) })
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// releases maps device IDs to the times when the devices were released. The time is zero while a pod holds the device.
type releases map[string]time.Time

// next returns the releases after a new snapshot. next calls offered() for each device that is offered again. next omits devices
// that are cordoned or absent, because these wait for an operator.
func (r releases) next(snapshot *inventory.Snapshot, now time.Time, offered func(took time.Duration)) releases {
	next := make(releases)
	for d := range snapshot.All() {
		id := d.Device.ID
		at, known := r[id]
		if at.IsZero() {
			at = now
		}
		switch {
		case d.Members != nil: // the members of a bundle are measured instead
		case d.Held():
			next[id] = time.Time{}
		case !known, d.Cordon != nil, !d.Present:
		case d.Healthy:
			offered(now.Sub(at))
		default:
			next[id] = at
		}
	}
	return next
}
