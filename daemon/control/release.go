// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// TimeReleases measures how long devices take from their release to their next offer, until ctx ends. It calls ready once.
// The error is always nil.
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

// releases are when devices were released, by ID. The zero time is that of a device that a pod still holds.
type releases map[string]time.Time

// next returns the releases after a snapshot, and calls offered for each device that is offered again. A device that is
// cordoned or not present is left out, for its time would be the operator's.
func (r releases) next(snapshot *inventory.Snapshot, now time.Time, offered func(took time.Duration)) releases {
	next := make(releases)
	for d := range snapshot.All() {
		id := d.Device.ID
		at, known := r[id]
		if at.IsZero() {
			at = now
		}
		switch {
		case d.Members != nil: // its members are counted
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
