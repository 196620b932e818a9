// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

const (
	// retryFirst and retryLast bound the time between looks at a device that is not complete yet: some drivers say
	// nothing when they are (NVIDIA's makes its nodes without an event). In between see [pause].
	retryFirst = 50 * time.Millisecond
	retryLast  = 5 * time.Minute
)

// lookWhere has every subject looked at that the function selects, and tells whether there is any.
func (l *loop) lookWhere(selects func(*subject) bool) (found bool) {
	for _, s := range l.subjects {
		if selects(s) {
			found = true
			l.look(s)
		}
	}
	return found
}

// lookRelated has every subject looked at that is at a path, above it or below it.
func (l *loop) lookRelated(sysPath string) {
	for s := range l.subjects.related(sysPath) {
		l.look(s)
	}
}

func (l *loop) lookAgain(ids []string) {
	for _, id := range ids {
		if e := l.entries[id]; e != nil && e.owner != nil {
			l.look(e.owner)
		}
	}
}

// look has a subject looked at: once, however often it is asked for until the look begins.
func (l *loop) look(s *subject) {
	switch {
	case s.queued || s.removed:
	case s.running:
		s.again = true
	default:
		s.queued = true
		l.queue = append(l.queue, s)
	}
}

// startLooks begins as many looks as there are places.
func (l *loop) startLooks() {
	for len(l.queue) > 0 && l.looking < places() {
		s := l.queue[0]
		l.queue = l.queue[1:]
		s.queued, s.running, s.began = false, true, time.Now()
		l.looking++
		l.begin(s)
	}
}

// begin looks at a subject beside the loop and posts what was seen.
func (l *loop) begin(s *subject) {
	u, rules, host := s.udev, l.rules, l.informed()
	watch := time.AfterFunc(slowLook, func() { l.post(func(l *loop) { l.slow(s, u) }) })
	go func() {
		sightings := device.Look(host, rules, u)
		watch.Stop()
		l.post(func(l *loop) { l.seen(s, u.SysPath, sightings) })
	}()
}

// note is what a look has to know of a device.
type note struct {
	held        bool   // a pod holds it, or we are at work on it: neither may a look disturb
	erased      bool   // the disk is offered whatever is on it, since that is erased
	proven      bool   // there is evidence that nothing is on the disk
	fingerprint string // by what the data that a tenant has left on the disk is known
}

// inform notes what looks that begin from now on have to know of a device.
func (l *loop) inform(e *entry) {
	id, n := e.device.ID, note{held: e.lease.Held() || e.busy()}
	if e.isDisk() {
		v := l.evidenceOf(e)
		n.erased, n.proven = l.spares(e), v != nil && v.Kind != "" && v.Scrub == ""
		if e.lease.Residue {
			n.fingerprint = e.left.fingerprint
		}
	}
	if l.notes[id] == n {
		return
	}
	if l.notes[id], l.noted = n, nil; n == (note{}) {
		delete(l.notes, id)
	}
}

// informed returns the host for a look that begins now. A device may be found where it was not before, so that each look
// gets the notes of all.
func (l *loop) informed() *device.Host {
	if l.noted == nil {
		l.noted = maps.Clone(l.notes)
	}
	host, noted := *l.Host, l.noted
	host.Holds = func(id string) bool { return noted[id].held }
	host.Erases = func(id string) bool { return noted[id].erased }
	host.Proven = func(id string) bool { return noted[id].proven }
	host.Fingerprint = func(id string) string { return noted[id].fingerprint }
	return &host
}

// slow gives the place of a look that takes long to another.
func (l *loop) slow(s *subject, u *udev.Device) {
	if !s.running || s.slow {
		return
	}
	s.slow = true
	l.looking--
	l.slowly++
	look := s.looks
	time.AfterFunc(stuckLook-slowLook, func() {
		l.post(func(l *loop) {
			if s.looks == look { // still the same look
				l.stuck(s, u)
			}
		})
	})
}

// stuck marks the devices of a subject whose look does not come back.
func (l *loop) stuck(s *subject, u *udev.Device) {
	if !s.slow || s.udev.SysPath != u.SysPath {
		return
	}
	for _, e := range s.entries {
		e.stuck = true
		l.changed(e)
	}
}

// seen takes in what a look at a path saw.
func (l *loop) seen(s *subject, at string, sightings []device.Sighting) {
	if s.slow {
		l.slowly--
	} else {
		l.looking--
	}
	s.running, s.slow = false, false
	if s.looks++; s.looks == 1 {
		l.deadline = time.Now().Add(l.Settle)
	}
	if l.astray(s, at, sightings) {
		return
	}
	s.sightings = sightings
	for _, sighting := range sightings {
		l.count(sighting.Counters)
	}
	l.claim(s)
	l.retryLater(s)
	switch {
	case s.again:
		s.again = false
		l.look(s)
	case len(sightings) == 0:
		s.removed = true
		l.subjects.remove(s.udev.SysPath)
	}
}

// retryLater has a subject looked at again that is not complete, or claims what another has: longer and longer after.
func (l *loop) retryLater(s *subject) {
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	switch {
	case !s.unfinished():
		s.waiting = time.Time{}
		return
	case s.waiting.IsZero():
		s.waiting = time.Now()
	}
	s.retry = time.AfterFunc(pause(time.Since(s.waiting), time.Since(s.began)), func() {
		l.post(func(l *loop) {
			s.retry = nil
			l.look(s)
		})
	})
}

// pause is how long a device that is not complete is left alone after a look that took so long: a quarter of the time
// since it was first found so, and no less than the look has taken, so that a machine which is too busy to answer in time
// is not made busier by the next question.
func pause(since, took time.Duration) time.Duration {
	return min(max(retryFirst, since/4, took), retryLast)
}
