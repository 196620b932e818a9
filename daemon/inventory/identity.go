// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// identities records which devices were found in each subject. A subject is a udev device.
type identities struct {
	*leases
	found map[*inspect.Subject]found
}

// found is the result of the last inspection of a subject.
type found struct {
	entries   []*entry
	others    []*Status // hardware without an identity
	contested []string  // IDs that this subject claims, but another subject has
}

// assign records which devices an inspection found in a subject, and removes the subject's other devices. assign returns true if
// the subject is incomplete, or if the subject claims an ID that another subject has.
func (i *identities) assign(s *inspect.Subject) (unfinished bool) {
	before, now := i.found[s], found{}
	var unreadable error
	for n := range s.Sightings {
		sighting := &s.Sightings[n]
		unfinished = unfinished || errors.Is(sighting.Offer, device.ErrIncomplete)
		if sighting.Device.ID == "" {
			if !errors.Is(sighting.Offer, device.ErrPart) { // ErrPart means that this hardware is only a part of another device
				unreadable = sighting.Offer
			}
			reason := verdict.Verdict{Reason: sighting.Offer.Error(), Since: time.Now()}
			now.others = append(now.others, &Status{Device: sighting.Device, Verdict: reason, Observation: Observation{Present: true}})
			continue
		}
		if e := i.entryFor(s, sighting, before.contested); e != nil {
			now.entries = append(now.entries, e)
			continue
		}
		now.contested = append(now.contested, sighting.Device.ID)
	}
	for _, e := range before.entries {
		if !slices.Contains(now.entries, e) && e.owner == s && i.noteMissing(e, unreadable) {
			now.entries = append(now.entries, e)
		}
	}
	i.stale = i.stale || !slices.EqualFunc(before.others, now.others, func(a, b *Status) bool { return a.Reason == b.Reason })
	if i.found[s] = now; len(s.Sightings) == 0 {
		delete(i.found, s)
	}
	return unfinished || now.contested != nil
}

// noteMissing records that an inspection of the subject did not find the device. Either the device is gone, or it cannot
// currently be identified. The result is true if an offered device is still present.
func (i *identities) noteMissing(e *entry, unreadable error) (there bool) {
	e.sighting, e.stuck, e.lastProbe = nil, false, lastProbe{}
	i.inspect(e.twin)
	if unreadable == nil {
		e.noteHardwareGone()
	}
	if e.Appearance == "" { // without an appearance, the disk cannot be distinguished from the next one
		i.noteReplacedMedium(e)
	}
	if there = unreadable != nil && e.offered; there {
		e.sighting = &device.Sighting{Device: e.device, Resource: e.resource, Offer: unreadable}
	}
	i.queueVerdict(e)
	return there
}

// entryFor returns the entry for a device that was found in a subject. If two subjects claim the same ID, the result is nil until
// one of them gets the ID. The parameter "before" contains the IDs that were contested at the last inspection.
func (i *identities) entryFor(s *inspect.Subject, sighting *device.Sighting, before []string) *entry {
	id := i.idFor(s, sighting, before)
	if id == "" {
		return nil
	}
	e, raw := i.entries[id], i.entries[sighting.Device.ID]
	if e == nil {
		e = &entry{device: sighting.Device, lease: newLease()}
		i.entries[id] = e
	} else if e.device.SysPath != "" && e.device.SysPath != sighting.Device.SysPath {
		// A device has no known path yet if only the kubelet's checkpoint named it. Such a device has not moved.
		i.Log.Info("device moved", "device", id, "syspath", sighting.Device.SysPath)
	}
	sighting.Device.ID = id
	if sighting.Device.NUMANode < 0 && e.status != nil { // the kernel may be removing the hardware; keep the known node
		sighting.Device.NUMANode = e.device.NUMANode
	}
	if *sighting.Device == *e.device { // unchanged, so all snapshots can share one value
		sighting.Device = e.device
	}
	e.device, e.owner, e.stuck = sighting.Device, s, false
	// Withhold a disk while the kernel is adding or removing its attributes. Without the diskseq, metalplug could mistake another
	// disk for this one.
	if e.Appearance != "" && sighting.Target.IsDisk() && sighting.Target.Appearance() == "" {
		sighting.Target, sighting.Offer = nil, fmt.Errorf("%w: the diskseq of the disk cannot be read", device.ErrIncomplete)
	}
	if raw != nil && raw != e {
		e.twin, raw.twin = raw, e
	}
	if r := e.twin; r != nil && r.sighting != nil && sighting.Twin(r.device.SysPath) && !errors.Is(r.sighting.Offer, device.ErrTwin) {
		i.inspect(r) // its last inspection may have been before this one appeared
	}
	if sighting.Target != nil || !e.isDisk() { // without a target, a disk's appearance is unknown
		i.noteAppearance(e, sighting)
		i.noteTwin(e)
	}
	e.sighting = e.applyLastProbe(sighting, time.Now())
	i.noteNumbers(e)
	if sighting.Instance != e.Instance { // the hardware is new and not initialised yet
		e.noteHardwareGone()
		e.Instance = sighting.Instance
		i.saveLater()
	}
	if sighting.Resource != "" && !e.offered {
		e.resource = sighting.Resource
	}
	if e.isCurrent() {
		e.work.phase = noWork
		free := sighting.Size > 0 || sighting.HostUse(false) // no helper is working on a disk that was probed or that the host uses
		e.Unfinished = e.Unfinished && !free
		i.noteWrites(e, sighting)
		i.compareContent(e, sighting)
		i.weigh(e, sighting)
	}
	i.queueVerdict(e)
	return e
}

// idFor returns the ID of a device that was found in a subject. If another device has that ID, idFor appends the device's
// location as a suffix. The result is empty until idFor can decide which device has the ID.
func (i *identities) idFor(s *inspect.Subject, sighting *device.Sighting, before []string) string {
	id := sighting.Device.ID
	suffixed := sighting.Device.LocatedID()
	if e := i.entries[suffixed]; e != nil && (e.owner == s || e.owner == nil) {
		return suffixed
	}
	e := i.entries[id]
	switch {
	case e == nil, e.owner == s, e.sighting == nil, e.owner.Vanished(): // no other hardware has the ID now
		return id
	case !slices.Contains(before, id) || e.owner.Due():
		// Postpone the decision. Usually the hardware has moved, and the old subject is about to disappear. If both still exist at the
		// next inspection, two devices have one identity. The new device's ID then gets a suffix with its location.
		i.noteReplacedMedium(e) // metalplugd does not know which of the two devices a tenant had
		i.queueVerdict(e)
		i.inspect(e)
		return ""
	}
	i.Log.Warn("identity claimed twice", "device", id, "syspath", sighting.Device.SysPath,
		"err", fmt.Errorf("%s already has this identity: the other device is offered as %s", e.device.SysPath, suffixed))
	return suffixed
}

// noteHardwareGone records that hardware is gone or was replaced. Hardware that appears afterwards must be initialised again. A
// device may disappear briefly while metalplugd resets it, or while its vendor unit loads new firmware. In either case,
// noteHardwareGone does nothing.
func (e *entry) noteHardwareGone() {
	if now := time.Now(); !now.Before(e.settling) && !e.mayChangeHardware(now) {
		e.Initialised, e.initFailure = "", ""
	}
}
