// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

const (
	// retryFirst and retryLast bound the time between looks at a device that is not complete yet, see [pause]. Some drivers
	// send no event when it is. NVIDIA's makes its nodes without one.
	retryFirst = 50 * time.Millisecond
	retryLast  = 5 * time.Minute
)

// lookWhere queues a look at every subject that the function selects, and reports whether there is any.
func (l *loop) lookWhere(selects func(*subject) bool) (found bool) {
	for _, s := range l.subjects {
		if selects(s) {
			found = true
			l.look(s)
		}
	}
	return found
}

// lookRelated queues a look at every subject at a path, above it or below it.
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

// look queues one look at a subject, however often it is called until the look begins.
func (l *loop) look(s *subject) {
	switch {
	case s.removed, s.phase == queued:
	case s.phase != idle:
		s.again = true
	default:
		s.phase = queued
		l.queue = append(l.queue, s)
	}
}

// startLooks begins as many looks as there are places.
func (l *loop) startLooks() {
	for len(l.queue) > 0 && l.looking < places() {
		s := l.queue[0]
		l.queue = l.queue[1:]
		s.phase, s.began = looking, time.Now()
		l.looking++
		l.begin(s)
	}
}

// begin looks at a subject outside of the loop and posts the sightings.
func (l *loop) begin(s *subject) {
	u, rules, host := s.udev, l.rules, l.informed()
	watch := time.AfterFunc(slowLook, func() { l.post(func(l *loop) { l.slow(s, u) }) })
	go func() {
		sightings := device.Look(host, rules, u)
		watch.Stop()
		l.post(func(l *loop) { l.seen(s, u.SysPath, sightings) })
	}()
}

// inform changes the note of a device for looks that begin from now on.
func (l *loop) inform(e *entry) {
	id, n := e.device.ID, device.Note{Held: e.lease.Held() || e.busy()}
	if e.isDisk() {
		v := l.evidenceOf(e)
		n.Erased, n.Proven = l.spares(e), v != nil && v.Kind != "" && v.Scrub == ""
		if e.lease.Residue {
			n.Fingerprint = e.left.fingerprint
		}
	}
	if l.notes[id] == n {
		return
	}
	if l.notes[id], l.noted = n, nil; n == (device.Note{}) {
		delete(l.notes, id)
	}
}

// informed returns the host for a look that begins now. A look may find a device at a new place, so that each look gets the
// notes of all.
func (l *loop) informed() *device.Host {
	if l.noted == nil {
		l.noted = maps.Clone(l.notes)
	}
	host := *l.Host
	host.Notes = l.noted
	return &host
}

// slow gives the place of a look that takes long to another.
func (l *loop) slow(s *subject, u *udev.Device) {
	if s.phase != looking {
		return
	}
	s.phase = slow
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

// stuck notes that the look at the devices of a subject does not come back.
func (l *loop) stuck(s *subject, u *udev.Device) {
	if s.phase != slow || s.udev.SysPath != u.SysPath {
		return
	}
	for _, e := range s.entries {
		e.stuck = true
		l.changed(e)
	}
}

// seen takes in the sightings of a look at a path.
func (l *loop) seen(s *subject, at string, sightings []device.Sighting) {
	if s.phase == slow {
		l.slowly--
	} else {
		l.looking--
	}
	s.phase = idle
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

// retryLater queues another look at a subject that is not complete, or claims an ID of another. The pause grows each time.
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

// pause returns the time between a look at a device that is not complete and the next. It is a quarter of the time since the
// device was first found so. It is not less than the look took, so that the looks do not load a busy node even more.
func pause(since, took time.Duration) time.Duration {
	return min(max(retryFirst, since/4, took), retryLast)
}
