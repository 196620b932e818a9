// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/fault"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// entry contains the state of a device that has an identity. The hardware may be absent.
type entry struct {
	device   *device.Device   // never modified after publication
	resource string           // the resource that offers the device, or would offer it
	twin     *entry           // the last other device with the same identity, or nil
	owner    *inspect.Subject // the subject that the device was last found in, or nil if it was not found since the start
	sighting *device.Sighting // result of the last inspection, or nil while the hardware is absent
	offered  bool             // the device is in a device list, where it stays until no pod can hold it
	awaited  bool             // the device was present when metalplugd last stopped
	stuck    bool             // an inspection of the device has taken too long and has not returned
	status   *Status          // published status, or nil
	settled  *settled         // the last verdict before metalplug's work, or nil
	lease    lease.Lease      // changed only by [leases.apply]
	damper   fault.Damper
	work     window // metalplug's own work on the device
	books
	known
	seenFingerprint string // fingerprint of the disk at the last inspection
	firmware
	lastProbe
	membership
}

// firmware is the state of the vendor unit that initialises a device.
type firmware struct {
	initFailure string    // why the unit failed, or empty
	settling    time.Time // end of the period in which the unit may still change the hardware
}

// settled is the verdict that applies to a device while inspections may show effects of metalplug's own work.
type settled struct {
	verdict.Verdict
	Observation
}

// leases extends disks with the methods that change a device's lease, record what the kubelet has given to pods, and derive the
// device's status.
type leases struct{ *disks }

// newLease returns the lease of a device that metalplug knows nothing about yet. Whether the device can be offered depends on the
// first verdict.
func newLease() lease.Lease { return lease.Lease{State: lease.Unproven} }

// isDisk reports whether the device can keep a tenant's data.
func (e *entry) isDisk() bool { return e.device.Class != nil && e.device.Class.Disks }

// queueVerdict queues an entry for a new verdict at the next publication.
func (d *devices) queueVerdict(e *entry) {
	d.dirty[e], d.notesStale[e] = true, true
}

// saveSoon queues an entry for a new verdict and schedules a save of the state.
func (d *devices) saveSoon(e *entry) {
	d.saveLater()
	d.queueVerdict(e)
}

// apply applies an event to a device's lease, and carries out the event's effects. If the lease's state does not allow the event,
// the lease stays unchanged, and the result is an error.
func (l *leases) apply(e *entry, event lease.Event) error {
	err := l.applySilently(e, event)
	l.queueVerdict(e)
	return err
}

// applySilently is like apply, but does not request a new snapshot.
func (l *leases) applySilently(e *entry, event lease.Event) error {
	f := l.facts(e)
	event.Proven = f.Offerable() && (event.Name != lease.Changed || !f.Evident())
	next, endsEvidence, err := e.lease.Apply(event)
	if err != nil {
		return fmt.Errorf("%s: %w", e.device.ID, err)
	}
	e.lease = next
	l.saveLater()
	if endsEvidence {
		l.endEvidence(e, event.Reason)
	}
	l.noteNumbers(e)
	if e.lease.Held() {
		e.vacant = false
	} else {
		e.booked = false
	}
	l.notesStale[e] = true
	return nil
}

// reconcile applies the result of the last inspection to the lease of a device that has no tenant. If the host uses the disk, or
// an inspection found the disk empty, the content is no longer treated as a tenant's. However, the host sometimes uses a disk
// only because the disk has not been erased yet. For example, if a tenant has written a RAID signature, udev assembles the array.
// reconcile returns the facts as they are afterwards.
func (l *leases) reconcile(e *entry, now time.Time) *verdict.Facts {
	held, used, f := e.lease.Held(), e.lease.Used, l.facts(e)
	if e.sighting == nil {
		return f
	}
	empty := !held && !used && !e.isOutdated() && e.sighting.Offer == nil && !(f.Evident() && f.OfferedWithData())
	// The operator's order applies to the content at the time of the order, rather than to data that the host writes later.
	hostUse, open := e.sighting.HostUse(held || used), f.Rule != nil && f.Rule.AllowInUse && held && e.lease.Hold != lease.Due
	if (e.lease.Residue && (empty || hostUse || open) || e.lease.Order == lease.Erase && hostUse) && !e.isFrozen(now) {
		_ = l.apply(e, lease.Event{Name: lease.Changed, Reason: "the host uses the disk, or it is empty"})
		f = l.facts(e)
	}
	switch {
	case e.lease.State == lease.Unproven && f.Offerable():
		_ = l.apply(e, lease.Event{Name: lease.Proven, Residue: f.OfferedWithData()})
	case e.lease.State == lease.Free && !f.Offerable():
		_ = l.apply(e, lease.Event{Name: lease.Doubted})
	default:
		return f
	}
	return l.facts(e)
}

// rule returns a resource's rule, or nil.
func (d *devices) rule(resource string) *device.Rule {
	i := slices.IndexFunc(d.rules, func(r device.Rule) bool { return r.Resource == resource })
	if i < 0 {
		return nil
	}
	return &d.rules[i]
}
