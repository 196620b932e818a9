// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// identities are the devices by where they were seen.
type identities struct {
	*leases
	found map[*inspect.Subject]found
}

// found is what the last look found in a subject.
type found struct {
	entries   []*entry
	others    []*Status       // the hardware that has no identity
	contested map[string]bool // IDs that it claims and another subject has
}

// claim gives a subject the devices that a look saw in it, and removes the others. It reports whether the subject is not
// complete, or claims an ID of another.
func (i *identities) claim(s *inspect.Subject) (unfinished bool) {
	before, now := i.found[s], found{}
	var unreadable error
	for n := range s.Sightings {
		sighting := &s.Sightings[n]
		unfinished = unfinished || errors.Is(sighting.Offer, device.ErrIncomplete)
		if sighting.Device.ID == "" {
			if !errors.Is(sighting.Offer, device.ErrPart) { // then another has what this one stood for until now
				unreadable = sighting.Offer
			}
			now.others = append(now.others, unidentified(sighting))
			continue
		}
		if e := i.entryFor(s, sighting, before.contested); e != nil {
			now.entries = append(now.entries, e)
			continue
		}
		if now.contested == nil {
			now.contested = make(map[string]bool)
		}
		now.contested[sighting.Device.ID] = true
	}
	for _, e := range before.entries {
		if !slices.Contains(now.entries, e) && e.owner == s && i.missing(e, unreadable) {
			now.entries = append(now.entries, e)
		}
	}
	i.stale = i.stale || !slices.EqualFunc(before.others, now.others, func(a, b *Status) bool { return a.Reason == b.Reason })
	if i.found[s] = now; len(s.Sightings) == 0 {
		delete(i.found, s)
	}
	return unfinished || now.contested != nil
}

// missing notes that a device was not seen in its subject. It is gone, or it may still be there while it cannot be
// identified.
func (i *identities) missing(e *entry, unreadable error) (there bool) {
	e.sighting, e.stuck, e.proof = nil, false, proof{}
	if unreadable == nil {
		e.departs()
	}
	if e.Appearance == "" { // then nothing will tell it from the next
		i.replaced(e)
	}
	if there = unreadable != nil && e.offered; there {
		e.sighting = &device.Sighting{Device: e.device, Resource: e.resource, Offer: unreadable}
	}
	i.changed(e)
	return there
}

// entryFor returns the entry for a device seen in a subject, or nil while another subject has the ID that it claims.
// before are the IDs that were contested at the last look.
func (i *identities) entryFor(s *inspect.Subject, sighting *device.Sighting, before map[string]bool) *entry {
	id := i.idFor(s, sighting, before)
	if id == "" {
		return nil
	}
	if raw := i.entries[sighting.Device.ID]; id != sighting.Device.ID && raw != nil && raw.sighting != nil {
		sighting.Twin(raw.device.SysPath)
	}
	e := i.entries[id]
	if e == nil {
		e = &entry{device: sighting.Device, lease: newLease()}
		i.entries[id] = e
	} else if e.device.SysPath != "" && e.device.SysPath != sighting.Device.SysPath { // the kubelet alone may have known it
		i.Log.Info("device moved", "device", id, "syspath", sighting.Device.SysPath)
	}
	sighting.Device.ID = id
	if sighting.Device.NUMANode < 0 && e.status != nil { // the hardware may be going away, and has not moved
		sighting.Device.NUMANode = e.device.NUMANode
	}
	if *sighting.Device == *e.device { // then the one that is known is kept, for good, and not one of each look
		sighting.Device = e.device
	}
	e.device, e.owner, e.stuck = sighting.Device, s, false
	e.onItsWay(sighting)
	if sighting.Target != nil || !e.isDisk() { // else it is not known which appearance was seen
		i.appears(e, sighting)
		i.noteTwin(e)
	}
	e.sighting = e.believe(sighting, time.Now())
	i.noteNumber(e)
	i.unsaved = e.arrives(sighting) || i.unsaved
	if sighting.Resource != "" && !e.offered {
		e.resource = sighting.Resource
	}
	i.noteWrites(e, sighting)
	i.compare(e, sighting)
	i.weigh(e, sighting)
	e.closeWindow()
	i.changed(e)
	return e
}

// idFor returns the ID of a device that was seen in a subject. It is its own, or one with its place in it if another device
// has that. It is empty while that is not decided.
func (i *identities) idFor(s *inspect.Subject, sighting *device.Sighting, before map[string]bool) string {
	id := sighting.Device.ID
	suffixed := device.MakeID(id, place(sighting.Device))
	if e := i.entries[suffixed]; e != nil && (e.owner == s || e.owner == nil) {
		return suffixed
	}
	e := i.entries[id]
	switch {
	case e == nil, e.owner == s, e.sighting == nil, e.owner.Vanished(): // then that is its other name
		return id
	case !before[id] || e.owner.Running():
		i.contest(e)
		return ""
	}
	i.Log.Warn("identity claimed twice", "device", id, "syspath", sighting.Device.SysPath,
		"err", fmt.Errorf("%s has it: the other is offered as %s", e.device.SysPath, suffixed))
	return suffixed
}

// place returns the place of a device in the node, which no other device has. It is the path through the buses as udev knows
// it, else the address of its PCI function, else its sysfs path.
func place(d *device.Device) string {
	if busPath := d.Udev.Properties.Value("ID_PATH"); busPath != "" {
		return busPath
	}
	if device.FunctionIn(d.SysPath) == d.SysPath {
		return path.Base(d.SysPath)
	}
	return strings.ReplaceAll(strings.TrimPrefix(d.SysPath, "/sys/devices/"), "/", "-")
}

// contest postpones the decision about an ID that a subject claims and another has. Usually the hardware has moved, and the
// old subject is about to go. If both are still there at the next look, two devices claim one identity, and the new one gets
// an ID with its place in it.
func (i *identities) contest(owned *entry) {
	i.replaced(owned) // which of them a tenant has had is not known
	i.changed(owned)
	i.look(owned)
}

// onItsWay holds a disk back while the kernel removes its attributes, or has not made them all. Without its diskseq another
// disk would be taken for it.
func (e *entry) onItsWay(s *device.Sighting) {
	if e.Appearance != "" && s.Target.IsDisk() && s.Target.Appearance() == "" {
		s.Target, s.Offer = nil, fmt.Errorf("%w: its diskseq cannot be read", device.ErrIncomplete)
	}
}

// arrives notes the appearance of the hardware, and reports whether it is another one, which is not initialised.
func (e *entry) arrives(s *device.Sighting) (another bool) {
	if another = s.Instance != e.Instance; another {
		e.departs()
	}
	e.Instance = s.Instance
	return another
}

// departs notes that hardware has gone, or that other hardware is in its place, which is not initialised. A reset by the
// daemon or new firmware may make it drop off the bus, which does not count.
func (e *entry) departs() {
	now := time.Now()
	if w := e.window; now.Before(e.settling) || w != nil && (e.busy() || w.phase == afterWork && (e.outdated() || now.Before(w.until))) {
		return
	}
	e.Initialised, e.uninit = "", ""
}

// unidentified is the status of hardware that is seen and has no identity.
func unidentified(s *device.Sighting) *Status {
	return &Status{Device: s.Device, Verdict: verdict.Verdict{Reason: s.Offer.Error(), Since: time.Now()}, Observation: Observation{Present: true}}
}
