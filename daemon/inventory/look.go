// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
)

// look queues a look at a device, if it was found since the start.
func (d *devices) look(e *entry) {
	if e.owner != nil {
		d.inspector.Look(e.owner)
	}
}

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

// informed returns the host for a look that begins now. A look may find a device at a new place, so that each look gets the
// notes of all.
func (d *disks) informed() *device.Host {
	for e := range d.untold {
		id, n := e.device.ID, d.note(e)
		if d.entries[id] != e || d.notes[id] == n {
			continue
		}
		if d.notes[id], d.noted = n, nil; n == (device.Note{}) {
			delete(d.notes, id)
		}
	}
	clear(d.untold)
	if d.noted == nil {
		d.noted = maps.Clone(d.notes)
	}
	host := *d.Host
	host.Notes = d.noted
	return &host
}

// note returns what a look has to know of a device.
func (d *disks) note(e *entry) device.Note {
	n := device.Note{Held: e.lease.Held() || e.busy()}
	if e.isDisk() {
		f, v := d.facts(e), d.evidence.Get(e.Disk)
		n.Erased, n.Proven = f.Spared(), v != nil && v.Kind != "" && v.Scrub == ""
		if e.lease.Residue {
			n.Fingerprint = e.left.Fingerprint
		}
	}
	return n
}
