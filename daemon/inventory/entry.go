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

// entry is a device with an identity, present or not.
type entry struct {
	device   *device.Device   // never written once it was published
	resource string           // in whose list it is or would be
	owner    *inspect.Subject // in which it was last found, or nil since the start
	sighting *device.Sighting // of the last look, or nil while the hardware is not there
	offered  bool             // it is in a list, and stays there until it is certainly free
	awaited  bool             // it was there when the last run ended
	stuck    bool             // the look at it does not come back
	status   *Status          // as published, or nil
	settled  *settled         // the last verdict that the daemon's own work had no part in, or nil
	lease    lease.Lease      // changed by [leases.apply] alone
	damper   *fault.Damper    // or nil if it was never unhealthy
	calm     *time.Timer      // until the damper releases it, or nil
	line     []byte           // of the state file, or nil after a change
	window   *window          // the daemon's own work on it, or nil
	books
	known
	seen left // the data that the last look found
	firmware
	proof
	membership
}

// firmware is the work of the vendor's unit that initialises a device.
type firmware struct {
	uninit   string    // why it failed, or empty
	settling time.Time // until then it may change the hardware
}

// settled is the verdict of a device while looks see the daemon's own work on it.
type settled struct {
	verdict.Verdict
	Observation
}

// leases change the lease of a device, and derive its status.
type leases struct{ *disks }

// newLease is that of a device of which nothing is known. The first judgement says whether it can be offered.
func newLease() lease.Lease { return lease.Lease{State: lease.Unproven} }

// isDisk reports whether a tenant's data stays on the device.
func (e *entry) isDisk() bool { return e.device.Class != nil && e.device.Class.Disks }

// changed queues an entry for a judgement at the next publication.
func (d *devices) changed(e *entry) {
	d.dirty[e], d.untold[e], e.line = true, true, nil
}

// keepSoon does the same, and saves the state soon.
func (d *devices) keepSoon(e *entry) {
	d.saveLater()
	d.changed(e)
}

// apply changes the lease of a device by an event, and carries out the effects. An event that the state does not have is an
// error, and changes nothing.
func (l *leases) apply(e *entry, event lease.Event) error {
	err := l.change(e, event)
	l.changed(e)
	return err
}

// change does the same without a new snapshot.
func (l *leases) change(e *entry, event lease.Event) error {
	f := l.facts(e)
	event.Proven = f.Offerable() && (event.Name != lease.Changed || !f.Evident())
	next, effects, err := e.lease.Apply(event)
	if err != nil {
		return fmt.Errorf("%s: %w", e.device.ID, err)
	}
	if e.lease.Equal(next) && len(effects) == 0 {
		return nil
	}
	e.lease, e.line, l.unsaved = next, nil, true
	for _, effect := range effects {
		switch effect {
		case lease.Save:
			l.saveLater()
		case lease.EndEvidence:
			l.endEvidence(e, event.Reason)
		case lease.Inspect:
			l.lookAnew(e)
		}
	}
	l.noteNumber(e)
	if !e.lease.Held() {
		e.booked = false
	}
	l.untold[e] = true
	return nil
}

// reconcile compares the lease of a device without a tenant with the evidence. Before that it forgets that a tenant has left
// the content of a disk, once the host uses the disk or a look sees it empty. A use of a disk that is not cleared may be the
// tenant's doing, since udev assembles an array from a disk that looks like a part of one.
func (l *leases) reconcile(e *entry, now time.Time) {
	if e.sighting == nil {
		return
	}
	held, used, f := e.lease.Held(), e.lease.Used, l.facts(e)
	empty := !held && !used && !e.outdated() && e.sighting.Offer == nil && !(f.Evident() && f.Spared())
	// The operator's order was about the content of before, and not about what the host writes after that.
	hostUse, open := e.sighting.HostUse(held || used), f.Rule != nil && f.Rule.AllowInUse
	if (e.lease.Residue && (empty || hostUse || open) || e.lease.Order == lease.Erase && hostUse) && !e.frozen(now) {
		_ = l.apply(e, lease.Event{Name: lease.Changed, Reason: "the host uses the disk, or it is empty"})
	}
	switch f = l.facts(e); {
	case e.lease.State == lease.Unproven && f.Offerable():
		_ = l.apply(e, lease.Event{Name: lease.Proven, Residue: f.Spared()})
	case e.lease.State == lease.Free && !f.Offerable():
		_ = l.apply(e, lease.Event{Name: lease.Doubted})
	}
}

// rule returns the rule of a resource, or nil.
func (d *devices) rule(resource string) *device.Rule {
	i := slices.IndexFunc(d.rules, func(r device.Rule) bool { return r.Resource == resource })
	if i < 0 {
		return nil
	}
	return &d.rules[i]
}
