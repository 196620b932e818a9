// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
)

// inspect queues an inspection of a device, if the device has been found since the start.
func (d *devices) inspect(e *entry) {
	if e != nil && e.owner != nil {
		d.inspector.Inspect(e.owner)
	}
}

// applyInspection applies the results of an inspection. applyInspection returns true if the subject must be inspected again, even
// if no event arrives.
func (l *loop) applyInspection(s *inspect.Subject) (unfinished bool) {
	if s.Inspections() == 1 {
		l.deadline = time.Now().Add(l.Settle)
	}
	for _, sighting := range s.Sightings {
		l.count(sighting.Counters)
	}
	return l.assign(s)
}

// markStuck records that the inspection of a subject is stuck.
func (l *loop) markStuck(s *inspect.Subject) {
	for _, e := range l.found[s].entries {
		e.stuck = true
		l.queueVerdict(e)
	}
}

// hostForInspection returns the host for an inspection that is about to start. The host contains the notes on all devices,
// because the inspection may find a device in a new place.
func (d *disks) hostForInspection() *device.Host {
	changed := make(map[string]device.Note)
	for e := range d.notesStale {
		if id, n := e.device.ID, d.note(e); d.entries[id] == e && d.notes[id] != n {
			changed[id] = n
		}
	}
	clear(d.notesStale)
	if len(changed) > 0 {
		d.notes = maps.Clone(d.notes) // an inspection may still be reading the old notes
		maps.Copy(d.notes, changed)
		maps.DeleteFunc(d.notes, func(_ string, n device.Note) bool { return n == device.Note{} })
	}
	host := *d.Host
	host.Notes = d.notes
	return &host
}

// note returns the facts about a device that an inspection needs.
func (d *disks) note(e *entry) device.Note {
	n := device.Note{Held: e.lease.Held() || e.isBusy()}
	if e.isDisk() {
		n.SysPath = e.device.SysPath
		f, v := d.facts(e), d.evidence.Get(e.Disk)
		n.Erased, n.Forced = f.OfferedWithData(), e.Unfinished || v != nil && v.Kind != "" && v.Scrub == ""
		if e.lease.Residue {
			n.Fingerprint = e.Fingerprint
		}
	}
	return n
}

// lastProbe is the last probe that returned a result for a disk. lastProbe is used while newer probes return no result.
type lastProbe struct {
	clean  bool      // the probe found the disk empty, and no pod has had the disk since
	health error     // the health error that the probe found, or nil
	since  time.Time // time of the first later probe without a result, or zero
}

// applyLastProbe returns the sighting. If the new probe has no result, applyLastProbe adds the result of the last probe.
// applyLastProbe uses an old result for at most [inspect.StuckTimeout], because hardware must answer within this time. Using the
// old result is safe, because the disk must be proven empty again before a container starts with it. A disk is not offered until
// a probe has returned a result.
func (e *entry) applyLastProbe(s *device.Sighting, now time.Time) *device.Sighting {
	if s.Unread && s.Health == nil && e.health != nil {
		as := *s
		as.Health, s = e.health, &as
	}
	switch {
	case !device.OnlyUnanswered(s.Offer):
		free := !e.lease.Held() && e.isCurrent() // otherwise, the probe did not read the disk, or began too early
		e.lastProbe = lastProbe{clean: free && s.Blank && s.Offer == nil && s.Health == nil, health: s.Health}
		return s
	case !e.clean || s.Health != nil:
		return s
	case e.since.IsZero():
		e.since = now
	case now.Sub(e.since) >= inspect.StuckTimeout:
		e.clean = false
		return s
	}
	as := *s // a copy, because the subject still needs the unchanged sighting
	as.Offer, as.Warning = nil, strings.TrimPrefix(s.Warning+"; the last known state is assumed: "+s.Offer.Error(), "; ")
	return &as
}
