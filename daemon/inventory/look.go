// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
)

// look queues a look at a device that was found since the start.
func (l *loop) look(e *entry) { l.inspector.Look(e.owner) }

// seen takes in the sightings of a look, and reports whether the subject is worth another look without an event.
func (l *loop) seen(s *inspect.Subject) (unfinished bool) {
	if s.Looks() == 1 {
		l.deadline = time.Now().Add(l.Settle)
	}
	for _, sighting := range s.Sightings {
		l.count(sighting.Counters)
	}
	return l.claim(s)
}

// stuck notes that the look at the devices of a subject does not come back.
func (l *loop) stuck(s *inspect.Subject) {
	for _, e := range l.found[s].entries {
		e.stuck = true
		l.changed(e)
	}
}

func (l *loop) lookAgain(ids []string) {
	for _, id := range ids {
		if e := l.entries[id]; e != nil && e.owner != nil {
			l.look(e)
		}
	}
}

// inform changes the note of a device for looks that begin from now on.
func (l *loop) inform(e *entry) {
	id, n := e.device.ID, device.Note{Held: e.lease.Held() || e.busy()}
	if e.isDisk() {
		v := l.evidenceOf(e)
		n.Erased, n.Proven = l.spares(e), v != nil && v.Kind != "" && v.Scrub == ""
		if e.lease.Residue {
			n.Fingerprint = e.left.Fingerprint
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
