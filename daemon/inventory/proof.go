// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// proof is what is known of a disk while nobody answers what is on it.
type proof struct {
	sound bool      // the last answer was that nothing is, and no pod has had it since
	sick  error     // what was wrong with its health by then
	since time.Time // when a look first had no answer after that; zero: the last one had
}

// believe returns a sighting as it is to be taken. That nobody has answered says nothing of a disk: it stays what the last
// answer has made of it, but no longer than any hardware may take to answer (stuckLook). Whoever gets it meanwhile is
// safe: before a container starts it has to be proven empty once more. A disk of which there was no answer yet is not
// offered.
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
	case now.Sub(e.since) >= stuckLook:
		e.sound = false
		return s
	}
	as := *s // the subject keeps what was seen, and is looked at again
	as.Offer, as.Warning = nil, strings.TrimPrefix(s.Warning+"; taken to be as it was: "+s.Offer.Error(), "; ")
	return &as
}
