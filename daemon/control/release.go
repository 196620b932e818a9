// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// TimeReleases measures, until ctx ends, the time from the release of each device until it is offered again. It calls
// ready once. The error is always nil.
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

// releases has the times when devices were released, by ID. The time is zero while a pod holds the device.
type releases map[string]time.Time

// next returns the releases after a snapshot. It calls offered for each device that is offered again. It omits devices
// that are cordoned or absent, because they wait for the operator.
func (r releases) next(snapshot *inventory.Snapshot, now time.Time, offered func(took time.Duration)) releases {
	next := make(releases)
	for d := range snapshot.All() {
		id := d.Device.ID
		at, known := r[id]
		if at.IsZero() {
			at = now
		}
		switch {
		case d.Members != nil: // the members of the bundle are counted instead
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
