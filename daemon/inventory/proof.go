// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
)

// proof is the last answer about the content of a disk, for the time without an answer.
type proof struct {
	sound bool      // the disk was empty by the last answer, and no pod has had it since
	sick  error     // the fault of its health by then
	since time.Time // when a look first had no answer after that, or zero
}

// believe returns a sighting with the last answer in place of a missing one, for at most the time in which hardware may
// answer (inspect.StuckLook). A pod that gets the disk in the meantime is safe. Before its container starts, the disk has to be
// proven empty once more. A disk without any answer yet is not offered.
func (e *entry) believe(s *device.Sighting, now time.Time) *device.Sighting {
	if s.Unread && s.Health == nil && e.sick != nil {
		as := *s
		as.Health, s = e.sick, &as
	}
	switch {
	case !device.OnlyUnanswered(s.Offer):
		free := !e.lease.Held() && !e.busy() && !e.outdated() // else it was not read
		e.proof = proof{sound: free && !s.Unread && s.Offer == nil && s.Health == nil, sick: s.Health}
		return s
	case !e.sound || s.Health != nil:
		return s
	case e.since.IsZero():
		e.since = now
	case now.Sub(e.since) >= inspect.StuckLook:
		e.sound = false
		return s
	}
	as := *s // the subject keeps what was seen, and is looked at again
	as.Offer, as.Warning = nil, strings.TrimPrefix(s.Warning+"; taken to be as it was: "+s.Offer.Error(), "; ")
	return &as
}
