// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// disks extends devices with the state that metalplugd keeps only for disks.
type disks struct {
	*devices
	evidence *evidence.Book         // the evidence that disks are unused
	media    map[string]*entry      // maps each medium to the entry that was last found with it
	notes    map[string]device.Note // notes for inspections, without zero values; keys are device IDs; never modified, only replaced
}

// writes returns a number of sectors that were written in the disk's present appearance.
func (d *disks) writes(e *entry, sectors uint64) evidence.Writes {
	return evidence.Writes{In: d.evidence.Presence(e.Disk), Sectors: sectors}
}

// setEvidence records evidence about a disk.
func (d *disks) setEvidence(e *entry, v evidence.Evidence) {
	if d.evidence.Knows(e.Disk) {
		d.evidence.Set(e.Disk, v)
		d.saveSoon(e)
	}
}

// endEvidence deletes the evidence about a disk and logs the reason. If a container is about to write to the disk, the reason is
// empty and nothing is logged.
func (d *disks) endEvidence(e *entry, reason string) {
	v := d.evidence.Get(e.Disk)
	if v == nil {
		return
	}
	d.evidence.End(e.Disk)
	switch {
	case reason == "":
	case v.Scrub != "":
		d.Log.Warn("adoption ended", "device", e.device.ID, "reason", reason+": adopt the disk again")
	default:
		d.Log.Log(context.Background(), LevelNotice, "evidence ended", "device", e.device.ID, "action", v.Kind, "reason", reason)
	}
	d.saveSoon(e)
}

// weigh updates the evidence about a disk after an inspection. If the result contradicts the evidence, weigh deletes the
// evidence.
func (l *leases) weigh(e *entry, s *device.Sighting) {
	v := l.evidence.Get(e.Disk)
	if v == nil || !s.Target.IsDisk() {
		return
	}
	if !s.Unread {
		e.work.recheck = false
	}
	seen := evidence.Seen{
		Wrote: l.writes(e, s.Written), SameBoot: l.evidence.SameBoot(v.Of), Size: s.Size, Held: e.lease.Held() && e.lease.Hold != lease.Due,
	}
	if s.HostUse(e.lease.Used) {
		seen.HostUse = s.Offer.Error()
	}
	// If the inspection found the disk blank, the signature in udev's database is outdated, because it dates from before the
	// erasure.
	if errors.Is(s.Offer, device.ErrData) && !s.Blank {
		seen.Data = verdict.Content(s.Offer)
	}
	switch next, ended := v.Weigh(seen); {
	case ended != "":
		l.endEvidence(e, ended)
	case next != *v:
		l.setEvidence(e, next)
	}
}

// RecordNoHolders records that no process has a disk open. The parameter target identifies the disk that the caller checked.
// RecordNoHolders does not wait.
func (i *Inventory) RecordNoHolders(id string, target *device.Target) {
	i.postAbout(id, func(l *loop, e *entry) {
		if v := l.evidence.Get(e.Disk); v != nil && e.sighting != nil && e.sighting.Target.Alike(target) && !e.isOutdated() {
			v.Asked = l.evidence.Presence(e.Disk)
			l.saveSoon(e)
		}
	})
}

// Surveyed records how far a disk has been read. The parameter target identifies the disk that was read. The parameter "from" is
// the evidence that existed when the read began. Surveyed does not wait.
func (i *Inventory) Surveyed(id string, target *device.Target, from evidence.Evidence, s device.Report) {
	i.postAbout(id, func(l *loop, e *entry) {
		if !l.facts(e).MustRead() || !e.sighting.Target.Alike(target) || e.isOutdated() {
			return
		}
		next, ok := l.evidence.Get(e.Disk).Surveyed(from, evidence.Read{Blank: s.Read, Size: s.Size, Content: s.Content})
		if !ok {
			return
		}
		if l.setEvidence(e, next); next.Kind != "" {
			delete(l.podData, id)
			e.Fingerprint, e.seenFingerprint = "", ""
			e.work.recheck = true // a process may have written to the disk since it was read
			l.invalidate(e)
		}
	})
}

// recordErased records that a disk was erased. The disk may have reappeared since the last inspection. If so, the helper reports
// the new appearance.
func (l *leases) recordErased(e *entry, p device.Report) {
	// The helper erases a disk only if no process has it open, so no separate check is needed.
	presence := l.evidence.Presence(evidence.Disk{Appearance: p.Appearance, Instance: e.Instance})
	v := evidence.Evidence{
		Kind: evidence.Erased, Size: p.Size, Since: time.Now().UTC(), Of: presence, Asked: presence,
		Wrote: evidence.Writes{In: presence, Sectors: p.Written},
	}
	if before := l.evidence.Get(e.Disk); before != nil && before.Kind == evidence.Adopted {
		v.Kind = evidence.Adopted
	}
	e.Fingerprint, e.seenFingerprint, e.Wrote = "", "", v.Wrote
	_ = l.apply(e, lease.Event{Name: lease.Erased})
	delete(l.podData, e.device.ID)
	l.setEvidence(e, v)
}

// Adopt records that the operator allows metalplug to erase a disk and then offer it. Adopt passes the newest state of the disk to
// the function check, and records nothing if check returns an error. The function runs on the inventory's goroutine, so it must not
// block or call the inventory. The function must return an error if the disk is absent. metalplug may erase the disk only while its
// content has the given fingerprint. When Adopt returns nil, the record is on disk. If Adopt returns an error, such as
// [ErrUnknownDevice], nothing has changed.
func (i *Inventory) Adopt(ctx context.Context, id, scrub, fingerprint string, check func(now *Current) error) error {
	var before *evidence.Evidence
	return changeDurably(ctx, i, func(l *loop) error {
		e, now := l.entries[id], l.current(id)
		if now == nil {
			return ErrUnknownDevice
		}
		if err := check(now); err != nil {
			return err
		}
		if err := l.apply(e, lease.Event{Name: lease.Adopted}); err != nil {
			return err
		}
		wrote := l.writes(e, e.sighting.Written)
		before = l.evidence.Get(e.Disk)
		l.setEvidence(e, evidence.Evidence{
			Kind: evidence.Adopted, Scrub: scrub, Since: time.Now().UTC(), Of: wrote.In, Fingerprint: fingerprint, Wrote: wrote,
		})
		return nil
	}, func(l *loop) {
		if e := l.entries[id]; e != nil && before != nil {
			l.setEvidence(e, *before)
		} else if e != nil {
			l.endEvidence(e, "the adoption cannot be saved")
		}
	})
}
