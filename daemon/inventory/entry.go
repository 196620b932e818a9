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
	device   *device.Device   // never written once it was published
	resource string           // whose offer it is in or would be in
	owner    *subject         // in which it was last found; nil: not since the start
	sighting *device.Sighting // of the last look; nil: the hardware is not there
	offered  bool             // it was in the offer: an ID is a promise, it stays until it is certainly free
	awaited  bool             // it was there when the last run ended
	stuck    bool             // the look at it does not come back
	status   *Status          // as published, nil: not yet
	verdict  verdict          // the last that was not frozen
	damper   *damper          // nil: it was never sick
	calm     *time.Timer      // of the moment when the damper lets it go; nil: it does not hold it
	proof
	tenancy
}

// verdict is what was made of a device.
type verdict struct {
	made       bool
	healthy    bool
	present    bool
	reason     string
	allocation device.Allocation
}

// claim gives a subject the devices that were seen in it and takes away those that were not.
func (l *loop) claim(s *subject) {
	found := make([]*entry, 0, len(s.sightings))
	before := s.contested
	s.contested = nil
	var others []*Status
	var unreadable error
	for n := range s.sightings {
		sighting := &s.sightings[n]
		if sighting.Device.ID == "" {
			if !errors.Is(sighting.Offer, device.ErrPart) { // then another has what this one stood for until now
				unreadable = sighting.Offer
			}
			others = append(others, unidentified(sighting))
			continue
		}
		if e := l.entryFor(s, sighting, before); e != nil {
			found = append(found, e)
		}
	}
	for _, e := range s.entries {
		if !slices.Contains(found, e) && e.owner == s && l.missing(e, unreadable) {
			found = append(found, e)
		}
	}
	s.entries = found
	l.setOthers(s, others)
}

// missing notes that a device was not seen in its subject: it is gone, or what is there could not be identified. Then it
// may be there still.
func (l *loop) missing(e *entry, unreadable error) (there bool) {
	e.sighting, e.stuck, e.proof = nil, false, proof{}
	if unreadable == nil {
		e.departs()
	}
	if e.appearance == "" { // then nothing will tell it from the next
		e.leftover = false
	}
	if there = unreadable != nil && e.offered; there {
		e.sighting = &device.Sighting{Device: e.device, Resource: e.resource, Offer: unreadable}
	}
	l.changed(e)
	return there
}

// entryFor returns the entry for a device seen in a subject, or nil while another subject has the ID that it claims.
// before are the IDs that were contested at the last look.
func (l *loop) entryFor(s *subject, sighting *device.Sighting, before map[string]bool) *entry {
	id := l.idFor(s, sighting, before)
	if id == "" {
		return nil
	}
	if raw := l.entries[sighting.Device.ID]; id != sighting.Device.ID && raw != nil && raw.sighting != nil {
		sighting.Twin(raw.device.SysPath)
	}
	e := l.entries[id]
	if e == nil {
		e = &entry{device: sighting.Device}
		l.entries[id] = e
	} else if e.device.SysPath != "" && e.device.SysPath != sighting.Device.SysPath { // the kubelet alone may have known it
		l.Log.Info("device moved", "device", id, "syspath", sighting.Device.SysPath)
	}
	sighting.Device.ID = id
	if sighting.Device.NUMANode < 0 && e.status != nil { // the hardware may be going away right now: it has not moved
		sighting.Device.NUMANode = e.device.NUMANode
	}
	if *sighting.Device == *e.device { // then the one that is known is kept, for good, and not one of each look
		sighting.Device = e.device
	}
	e.device, e.owner, e.stuck = sighting.Device, s, false
	e.onItsWay(sighting)
	if sighting.Target != nil || !e.disk() { // else it is not known which appearance was seen
		e.appears(sighting)
		l.noteTwin(e)
	}
	e.sighting = e.believe(sighting, time.Now())
	l.unsaved = e.arrives(sighting) || l.unsaved
	if sighting.Resource != "" && !e.offered {
		e.resource = sighting.Resource
	}
	l.compare(e, sighting)
	l.weigh(e, sighting)
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
	case e == nil, e.owner == s, e.sighting == nil, !e.owner.vanished.IsZero(): // then that is its other name
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
func place(d *device.Device) string {
	if busPath := d.Udev.Properties.Value("ID_PATH"); busPath != "" {
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
	owned.leftover = false // which of them a pod has had is not known
	l.changed(owned)
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
func (l *loop) changed(e *entry) {
	l.dirty[e] = true
	l.tellSpared(e)
}

// unfit returns why the device must not be offered, nil: it may be. A pod that holds a device may use it, and what it
// leaves behind is no reason where that is erased.
func (l *loop) unfit(e *entry) error {
	switch {
	case e.sighting == nil && e.owner == nil:
		return errNotBack
	case e.sighting == nil:
		return device.ErrGone
	case e.offered && e.sighting.Resource != "" && e.sighting.Resource != e.resource:
		return fmt.Errorf("%w %s: it changes over once no pod holds it", errElsewhere, e.sighting.Resource)
	case e.held && device.OnlyInUse(e.sighting.Offer), l.erasable(e):
		return nil
	}
	if offer := e.sighting.Offer; offer != nil && (e.held || !device.OnlyData(offer)) {
		return offer
	}
	return cmp.Or(l.unproven(e), e.sighting.Offer)
}

// errElsewhere is why a device is Unhealthy in a resource that it belonged to when it was offered. It cannot be in both:
// a pod may hold it by the old name, and the kubelet would give it out once more by the new.
var errElsewhere = errors.New("it belongs to another resource now,")

// errNotBack is why a device of the last run is Unhealthy that has not been seen since.
var errNotBack = errors.New("not seen since metalplug was started")

// judge makes the status of a device out of all that is known of it.
func (l *loop) judge(e *entry, now time.Time) *Status {
	unfit := l.unfit(e)
	e.offered = e.offered || unfit == nil && e.resource != ""
	s := &Status{Device: e.device, Since: now, Present: e.sighting != nil, Held: e.held, As: e.as, Stale: e.offered && unfit != nil}
	l.emptied(e, now)
	l.tellSpared(e)
	l.turn(e, s)
	frozen := e.frozen(now)
	if e.sighting != nil {
		s.Allocation, s.Target = e.sighting.Allocation, e.sighting.Target
		if unfit == nil && e.sighting.Offer != nil { // forgiven
			s.Used = e.sighting.Offer.Error()
		}
	}
	if e.offered {
		s.Resource = e.resource
	}
	l.evident(e, s)
	if unfit != nil {
		s.Reason = unfit.Error()
	} else {
		s.Reason, s.Warning = e.ailments(l.marks)
		if !frozen {
			s.Reason = cmp.Or(s.Reason, e.distrust(s.Reason, now))
		}
		s.Reason = cmp.Or(s.Reason, e.work().failed, l.waiting(e))
		s.Healthy = s.Reason == ""
		l.calmLater(e, now)
	}
	l.settle(e, s, frozen)
	if s.Nodes = s.Allocation.Nodes; len(s.Nodes) == 0 && e.sighting != nil {
		s.Nodes = e.sighting.Nodes
	}
	l.cordoned(s)
	s.State = e.state(errors.Is(unfit, device.ErrUnproven))
	if old := e.status; old != nil && old.Healthy == s.Healthy && old.Gist() == s.Gist() {
		s.Since = old.Since
	}
	return s
}

// settle gives a device the last verdict while what is seen of it is our own doing.
func (l *loop) settle(e *entry, s *Status, frozen bool) {
	if v := e.verdict; frozen && v.made {
		s.Healthy, s.Reason, s.Present, s.Allocation = v.healthy, v.reason, v.present, v.allocation
	} else {
		e.verdict = verdict{true, s.Healthy, s.Present, s.Reason, s.Allocation}
	}
	if why := e.work().why; why != "" {
		s.Healthy, s.Reason = false, cmp.Or(s.Reason, why)
	}
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

// distrust returns why a device that is well, reason "", is not to be trusted yet; "": it is.
func (e *entry) distrust(reason string, now time.Time) string {
	switch {
	case e.damper != nil:
	case reason == "":
		return ""
	default:
		e.damper = &damper{}
	}
	return e.damper.observe(reason, now)
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
