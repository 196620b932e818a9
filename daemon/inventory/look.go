// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
)

// look queues an inspection of a device, if the device has been found since the start.
func (d *devices) look(e *entry) {
	if e.owner != nil {
		d.inspector.Look(e.owner)
	}
}

// seen applies the results of an inspection. It reports whether the subject must be inspected again without waiting for an
// event.
func (l *loop) seen(s *inspect.Subject) (unfinished bool) {
	if s.Looks() == 1 {
		l.deadline = time.Now().Add(l.Settle)
	}
	for _, sighting := range s.Sightings {
		l.count(sighting.Counters)
	}
	return l.claim(s)
}

// stuck records that the inspection of a subject does not return.
func (l *loop) stuck(s *inspect.Subject) {
	for _, e := range l.found[s].entries {
		e.stuck = true
		l.changed(e)
	}
}

// informed returns the host for an inspection that starts now. The host contains the notes on all devices, because the
// inspection may find a device in a new place.
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

// note returns the facts about a device that an inspection needs.
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
