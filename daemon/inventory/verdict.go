// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"errors"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// facts returns the current facts about an entry.
func (d *disks) facts(e *entry) *verdict.Facts {
	f := &verdict.Facts{
		Seen: e.sighting, Known: e.owner != nil, Resource: e.resource, Offered: e.offered, Lease: e.lease, Rule: d.rule(e.resource), Aside: e.asideReason, Claims: len(e.Claims),
		Disk: verdict.DiskFacts{
			Surveyed: d.Host.Touch.Survey != nil, Watched: d.Host.Touch.Holders != nil, Evidence: d.evidence.Get(e.Disk), Recheck: e.work.recheck,
		},
		Same: e.Fingerprint == e.seenFingerprint, Opened: cmp.Or(d.checkOpened(e), d.checkExposed(e)), Firmware: e.Initialised, Uninit: e.initFailure, Delay: e.work.delay, Order: e.work.order,
	}
	if d.evidence.Knows(e.Disk) {
		f.Disk.Presence = d.evidence.Presence(e.Disk)
	}
	if c := d.cordons[e.device.ID]; c != nil {
		f.Cordon = c.Reason
	}
	if e.stuck {
		f.Faults.Stuck = inspect.StuckTimeout
	}
	f.Faults.Marks, f.Faults.Warnings = d.faults.Lookup(e.device.SysPath, e.functions(), e.device.Class != nil && e.device.Class.NeedsAll)
	return f
}

// judge computes a device's status.
func (l *leases) judge(e *entry, now time.Time) *Status {
	f := l.reconcile(e, now)
	unfit := f.Unfit()
	e.offered = e.offered || unfit == nil && e.resource != ""
	f.Offered = e.offered
	frozen := e.isFrozen(now)
	if frozen && e.settled != nil {
		f.Frozen = &e.settled.Verdict
	}
	if unfit == nil && !frozen {
		f.Faults.Flapping = e.damper.Observe(f.HardwareFaults(), now, func(wait time.Duration) {
			l.postLater(wait, func(l *loop) { l.judgeAgain(e) })
		})
	}
	s := &Status{Device: e.device, Lease: e.lease, Verdict: f.Verdict(), HeldAs: e.heldAs, Bundle: e.bundle, Claims: e.Claims}
	if s.Observation = e.observation(); f.Frozen != nil {
		s.Present, s.Allocation, s.Nodes = e.settled.Present, e.settled.Allocation, e.settled.Nodes
	} else {
		e.settled = &settled{s.Verdict, s.Observation}
	}
	s.Lost = f.Lost()
	s.Verdict, s.Cordon = f.Restrict(s.Verdict), l.cordons[e.device.ID]
	s.Stale = s.Stale && !(e.vacant && f.CanLeave())
	if e.offered {
		s.Resource = e.resource
	}
	l.fillIn(e, f, s)
	s.Since = now
	if old := e.status; old != nil && old.Healthy == s.Healthy && old.StableReason() == s.StableReason() {
		s.Since = old.Since
	}
	return s
}

// observation returns the facts from the last inspection.
func (e *entry) observation() Observation {
	if e.sighting == nil {
		return Observation{}
	}
	return Observation{Present: true, Allocation: e.sighting.Allocation, Nodes: e.sighting.Nodes, Target: e.sighting.Target}
}

// fillIn adds a device's pending work and the facts about its disk.
func (l *leases) fillIn(e *entry, f *verdict.Facts, s *Status) {
	if s.Taker = e.resource; e.sighting != nil && (!e.offered || f.Rule != nil) {
		s.Taker = cmp.Or(e.sighting.Resource, s.Resource)
	}
	if e.sighting != nil && e.sighting.Offer != nil && !device.OnlyData(e.sighting.Offer) {
		s.Blocked = e.sighting.Offer.Error()
	}
	s.Moved = e.lease.Held() && e.hasMoved()
	if f.Disk.Evidence != nil {
		s.Evidence = *f.Disk.Evidence
	} else if f.MustRead() {
		s.Evidence = evidence.Evidence{Wrote: l.writes(e, e.sighting.Written)}
	}
	unrecorded := e.lease.Residue && (e.isBusy() || e.isOutdated() || e.sighting != nil && e.sighting.Unread)
	// While metalplugd does not know the disk's state, a helper from before a crash may still be erasing the disk.
	unknown := e.Unfinished || e.awaited && e.owner == nil && !l.afterBoot || e.sighting != nil && errors.Is(e.sighting.Offer, device.ErrIncomplete)
	s.Unrecorded = s.Cordon != nil && !e.lease.Held() && (e.lease.State == lease.Clearing || unrecorded || e.isDisk() && unknown)
	s.Todo = f.Todo()
}
