// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// entry is a device with an identity, present or not.
type entry struct {
	device    device.Device
	resource  string           // whose offer it is in or would be in
	owner     *subject         // in which it was last found; nil: not since the start
	sighting  *device.Sighting // of the last look; nil: the hardware is not there
	offered   bool             // it was in the offer: an ID is a promise, it stays until it is certainly free
	held      bool             // a pod holds it, as far as is known
	allocated time.Time        // when a container was last given it
	awaited   bool             // it was there when the last run ended
	stuck     bool             // the look at it does not come back
	status    *Status          // as published, nil: not yet
	damper    damper
	calm      *time.Timer // of the moment when the damper lets it go; nil: it does not hold it
}

// claim gives a subject the devices that were seen in it and takes away those that were not.
func (l *loop) claim(s *subject) {
	found := make(map[string]*entry, len(s.sightings))
	before := s.contested
	s.contested = nil
	var others []*Status
	var unreadable error
	for n := range s.sightings {
		sighting := &s.sightings[n]
		if sighting.Device.ID == "" {
			unreadable = sighting.Offer
			others = append(others, unidentified(sighting))
			continue
		}
		if e := l.entryFor(s, sighting, before); e != nil {
			found[e.device.ID] = e
		}
	}
	for id, e := range s.entries {
		if found[id] == nil && e.owner == s {
			l.missing(e, unreadable, found)
		}
	}
	s.entries = found
	l.setOthers(s, others)
}

// missing notes that a device was not seen in its subject: it is gone, or what is there could not be identified.
func (l *loop) missing(e *entry, unreadable error, found map[string]*entry) {
	e.sighting, e.stuck = nil, false
	if unreadable != nil && e.offered {
		e.sighting = &device.Sighting{Device: e.device, Resource: e.resource, Offer: unreadable}
		found[e.device.ID] = e
	}
	l.changed(e)
}

// entryFor returns the entry for a device seen in a subject, or nil while another subject has the ID that it claims.
// before are the IDs that were contested at the last look.
func (l *loop) entryFor(s *subject, sighting *device.Sighting, before map[string]bool) *entry {
	id := l.idFor(s, sighting, before)
	if id == "" {
		return nil
	}
	e := l.entries[id]
	if e == nil {
		e = &entry{}
		l.entries[id] = e
	} else if e.device.SysPath != sighting.Device.SysPath {
		l.Log.Info("device moved", "device", id, "syspath", sighting.Device.SysPath)
	}
	known := e.device.NUMANode
	e.device, e.owner, e.sighting, e.stuck = sighting.Device, s, sighting, false
	e.device.ID = id
	if e.device.NUMANode < 0 && e.status != nil { // the hardware may be going away right now: it has not moved
		e.device.NUMANode = known
	}
	if sighting.Resource != "" && !e.offered {
		e.resource = sighting.Resource
	}
	l.changed(e)
	return e
}

// idFor returns the ID by which a device goes that was seen in a subject: its own, or where another device has that, one
// with its place in it; "" while that is not decided.
func (l *loop) idFor(s *subject, sighting *device.Sighting, before map[string]bool) string {
	id := sighting.Device.ID
	suffixed := device.MakeID(id, place(sighting.Device))
	if e := l.entries[suffixed]; e != nil && (e.owner == s || e.owner == nil) {
		return suffixed
	}
	e := l.entries[id]
	switch {
	case e == nil || e.owner == s || e.sighting == nil:
		return id
	case !before[id] || e.owner.running:
		l.contest(s, id, e)
		return ""
	}
	l.Log.Warn("identity claimed twice", "device", id, "syspath", sighting.Device.SysPath,
		"err", fmt.Errorf("%s has it: the other is offered as %s", e.device.SysPath, suffixed))
	return suffixed
}

// place returns where in the machine a device is, which no other is: its path through the buses as udev knows it, else
// the address of its PCI function, else its sysfs path.
func place(d device.Device) string {
	if busPath := d.Udev.Properties["ID_PATH"]; busPath != "" {
		return busPath
	}
	if device.FunctionIn(d.SysPath) == d.SysPath {
		return path.Base(d.SysPath)
	}
	return strings.ReplaceAll(strings.TrimPrefix(d.SysPath, "/sys/devices/"), "/", "-")
}

// contest puts off the decision about an ID that a subject claims and another has: mostly the hardware has moved, and
// the old subject is about to go. If both are still there at the next look, two devices claim one identity, and the
// newcomer gets an ID with its place in it.
func (l *loop) contest(s *subject, id string, owned *entry) {
	if s.contested == nil {
		s.contested = make(map[string]bool)
	}
	s.contested[id] = true
	l.look(owned.owner)
}

// unfinished tells whether a subject is worth another look without an event.
func (s *subject) unfinished() bool {
	if len(s.contested) > 0 {
		return true
	}
	for _, sighting := range s.sightings {
		if errors.Is(sighting.Offer, device.ErrIncomplete) {
			return true
		}
	}
	return false
}

// changed has an entry judged anew at the next publication.
func (l *loop) changed(e *entry) { l.dirty[e] = true }

// allocated notes that pods are about to hold these devices. It holds at once; the readers hear of it a little later, since
// the kubelet is waiting for our answer just now.
func (l *loop) allocated(ids []string) {
	var held []*entry
	for _, id := range ids {
		e := l.entries[id]
		if e == nil {
			continue
		}
		e.allocated = time.Now()
		if !e.held {
			e.held = true
			held = append(held, e)
		}
	}
	if len(held) > 0 {
		time.AfterFunc(publishGap, func() { l.post(func(l *loop) { l.heldSince(held) }) })
	}
}

// heldSince has entries judged anew that have been held for a little while.
func (l *loop) heldSince(held []*entry) {
	for _, e := range held {
		if l.entries[e.device.ID] == e {
			l.changed(e)
		}
	}
}

// released notes that no pod holds these devices any more.
func (l *loop) released(ids []string) {
	for _, id := range ids {
		if e := l.entries[id]; e != nil && e.held {
			e.held = false
			l.changed(e)
		}
	}
}

// Holding is how the kubelet's pods stand to a device.
type Holding int

const (
	// Unknown: the kubelet did not say.
	Unknown Holding = iota
	// Held: a pod holds it.
	Held
	// Remembered: no pod holds it, but the kubelet's checkpoint still names it. The kubelet writes the checkpoint anew
	// when it is sent a list, without the pods that it knows to be gone.
	Remembered
	// Free: certainly no pod holds it.
	Free
)

// confirm takes in how the kubelet's pods stand to devices. Only what is free can leave the offer: the kubelet crashes
// over an allocated ID that it does not know (kubernetes v1.35 and v1.36, devicemanager).
func (l *loop) confirm(holdings map[string]Holding) {
	for id, holding := range holdings {
		e := l.entries[id]
		if e == nil {
			continue
		}
		switch {
		case holding == Held && !e.held:
			e.held = true
			l.changed(e)
		case holding == Remembered:
			l.resend[e.resource] = true
		case holding == Free && time.Since(e.allocated) > l.Grace:
			e.held = false
			if e.offered = e.offered && e.unfit() == nil; !e.offered && e.sighting != nil {
				l.look(e.owner)
			}
			l.changed(e)
		}
	}
}

// unfit returns why the device must not be offered, nil: it may be. A pod that holds a device may use it.
func (e *entry) unfit() error {
	switch {
	case e.sighting == nil && e.owner == nil:
		return errNotBack
	case e.sighting == nil:
		return device.ErrGone
	case e.offered && e.sighting.Resource != "" && e.sighting.Resource != e.resource:
		return fmt.Errorf("%w %s: it changes over once no pod holds it", errElsewhere, e.sighting.Resource)
	case e.held && device.OnlyInUse(e.sighting.Offer):
		return nil
	}
	return e.sighting.Offer
}

// errElsewhere is why a device is Unhealthy in a resource that it belonged to when it was offered. It cannot be in both:
// a pod may hold it by the old name, and the kubelet would give it out once more by the new.
var errElsewhere = errors.New("it belongs to another resource now,")

// errNotBack is why a device of the last run is Unhealthy that has not been seen since.
var errNotBack = errors.New("not seen since metalplug was started")

// judge makes the status of a device out of all that is known of it.
func (l *loop) judge(e *entry, now time.Time) *Status {
	unfit := e.unfit()
	e.offered = e.offered || unfit == nil && e.resource != ""
	s := &Status{Device: e.device, Since: now, Present: e.sighting != nil, Held: e.held, Stale: e.offered && unfit != nil}
	if e.sighting != nil {
		s.Allocation = e.sighting.Allocation
		if unfit == nil && e.sighting.Offer != nil { // forgiven
			s.Used = e.sighting.Offer.Error()
		}
	}
	if e.offered {
		s.Resource = e.resource
	}
	if unfit != nil {
		s.Reason = unfit.Error()
	} else {
		s.Reason, s.Warning = e.ailments(l.marks)
		s.Reason = cmp.Or(s.Reason, e.damper.observe(s.Reason, now))
		s.Healthy = s.Reason == ""
		l.calmLater(e, now)
	}
	if old := e.status; old != nil && old.Healthy == s.Healthy && old.Reason == s.Reason {
		s.Since = old.Since
	}
	return s
}

// ailments returns why a device is sick, and what is not as it should be though it is usable: what the last look has
// found and what marks say.
func (e *entry) ailments(m marks) (sick, warning string) {
	reasons, warnings := m.on(e)
	switch {
	case e.stuck:
		reasons = slices.Insert(reasons, 0, fmt.Sprintf("no answer from the hardware for %v", stuckLook))
	case e.sighting.Health != nil:
		reasons = slices.Insert(reasons, 0, e.sighting.Health.Error())
	}
	if e.sighting.Warning != "" {
		warnings = slices.Insert(warnings, 0, e.sighting.Warning)
	}
	return strings.Join(reasons, "; "), strings.Join(warnings, "; ")
}

// calmLater has a device judged again when its damper lets it go.
func (l *loop) calmLater(e *entry, now time.Time) {
	until := e.damper.until()
	if until.IsZero() || e.calm != nil {
		return
	}
	e.calm = time.AfterFunc(until.Sub(now), func() {
		l.post(func(l *loop) {
			e.calm = nil
			if l.entries[e.device.ID] == e {
				l.changed(e)
			}
		})
	})
}

// unidentified is the status of hardware that is seen and has no identity.
func unidentified(s *device.Sighting) *Status {
	return &Status{Device: s.Device, Reason: s.Offer.Error(), Since: time.Now(), Present: true}
}
