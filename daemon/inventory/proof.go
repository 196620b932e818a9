// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
)

// lastProbe is the last probe that returned a result for a disk. It is used while newer probes return no result.
type lastProbe struct {
	clean bool      // the probe found the disk empty, and no pod has had the disk since
	sick  error     // the health error of the probe
	since time.Time // time of the first later probe without a result, or zero
}

// applyLastProbe returns the sighting, with the result of the last probe if the new probe has none. applyLastProbe uses the
// old result for at most [inspect.StuckLook], the time within which hardware must answer. Using the old result is safe,
// because the disk must be proven empty again before a container starts with it. A disk is not offered until a probe has
// returned a result.
func (e *entry) applyLastProbe(s *device.Sighting, now time.Time) *device.Sighting {
	if s.Unread && s.Health == nil && e.sick != nil {
		as := *s
		as.Health, s = e.sick, &as
	}
	switch {
	case !device.OnlyUnanswered(s.Offer):
		free := !e.lease.Held() && !e.busy() && !e.outdated() // otherwise the probe did not read the disk
		e.lastProbe = lastProbe{clean: free && !s.Unread && s.Offer == nil && s.Health == nil, sick: s.Health}
		return s
	case !e.clean || s.Health != nil:
		return s
	case e.since.IsZero():
		e.since = now
	case now.Sub(e.since) >= inspect.StuckLook:
		e.clean = false
		return s
	}
	as := *s // a copy, because the subject keeps its sighting and is inspected again
	as.Offer, as.Warning = nil, strings.TrimPrefix(s.Warning+"; its last known state is assumed: "+s.Offer.Error(), "; ")
	return &as
}
