// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// disks are the facts about disks.
type disks struct {
	*devices
	evidence map[string]*evidence.Evidence // why they count as unused, by medium
	media    map[string]*entry             // the last entry that was seen with a medium
	twins    map[string]bool               // media that two disks have claimed at once since the start
	notes    map[string]device.Note        // for looks, by the ID of the device, without the zero ones
	noted    map[string]device.Note        // the copy that the last look got, never written, or nil after a change
}

// evidenceKey returns the key of a disk's evidence, which is its medium, or without one its appearance in this boot. It is
// empty if another disk could not be told from it.
func (d *disks) evidenceKey(e *entry) string {
	switch {
	case e.Medium != "" && !d.twins[e.Medium]:
		return e.Medium
	case e.Appearance != "" && d.faults.Boot != "":
		return d.here(e)
	}
	return ""
}

// bootKey begins the keys of appearances, which the kernel counts from the start in each boot.
func (d *disks) bootKey() string { return "boot=" + d.faults.Boot + " " }

// evidenceOf returns the evidence of a disk, or nil.
func (d *disks) evidenceOf(e *entry) *evidence.Evidence {
	if key := d.evidenceKey(e); key != "" {
		return d.evidence[key]
	}
	return nil
}

// needsEvidence reports whether a device is offered only on evidence.
func (d *disks) needsEvidence(e *entry) bool {
	rule := d.rule(e.resource)
	return d.Host.Touch.Survey != nil && rule != nil && !rule.AllowInUse && e.sighting != nil && e.sighting.Target.IsDisk()
}

// setEvidence records evidence of a disk.
func (d *disks) setEvidence(e *entry, v evidence.Evidence) {
	if key := d.evidenceKey(e); key != "" {
		d.evidence[key] = &v
		d.keepSoon(e)
	}
}

// endEvidence forgets the evidence of a disk. reason is for the log, and empty before a container writes there.
func (d *disks) endEvidence(e *entry, reason string) {
	v := d.evidenceOf(e)
	if v == nil {
		return
	}
	delete(d.evidence, d.evidenceKey(e))
	switch {
	case reason == "":
	case v.Scrub != "":
		d.Log.Warn("adoption ended", "device", e.device.ID, "err", reason+": adopt the disk again")
	default:
		d.Log.Log(context.Background(), LevelNotice, "evidence ended", "device", e.device.ID, "action", v.Kind, "err", reason)
	}
	d.keepSoon(e)
}

func (d *devices) keepSoon(e *entry) {
	d.saveLater()
	d.changed(e)
}

// weigh compares the evidence of a disk with a look.
func (l *leases) weigh(e *entry, s *device.Sighting) {
	v := l.evidenceOf(e)
	if v == nil || !s.Target.IsDisk() || e.busy() || e.outdated() {
		return
	}
	if e.work().recheck && !s.Unread {
		e.atWork().recheck = false
	}
	seen := evidence.Seen{
		Presence: l.here(e), SameBoot: strings.HasPrefix(v.Of, l.bootKey()), Size: s.Size, Written: s.Written, Held: e.lease.Held(),
	}
	if s.HostUse(e.lease.Used) {
		seen.HostUse = s.Offer.Error()
	}
	if errors.Is(s.Offer, device.ErrData) && !s.Blank { // else udev has not inspected the disk since its erasure
		seen.Data = evidence.Content(s.Offer)
	}
	switch next, ended := v.Weigh(seen); {
	case ended != "":
		l.endEvidence(e, ended)
	case next != *v:
		l.setEvidence(e, next)
	}
}

// presence returns what tells a disk in one of its appearances from all other disks with its medium. Where the kernel does not
// count appearances (before Linux 5.15), it is the directory of the disk in sysfs.
func (d *disks) presence(e *entry, appearance string) string {
	if appearance == "" {
		return d.bootKey() + "directory=" + strconv.FormatUint(e.Instance, 10)
	}
	return d.bootKey() + "diskseq=" + appearance
}

// here is the presence in which the disk was seen last.
func (d *disks) here(e *entry) string { return d.presence(e, e.Appearance) }

// Way returns the command by which the operator gives a disk with data to pods. An adoption belongs to a medium. Without an
// identity it would count for another disk in its place as well.
func Way(id string, target *device.Target) string {
	if target.Medium() == "" {
		return fmt.Sprintf("metalplugctl reset %s --scrub zero erases and offers it, until it is plugged in again", id)
	}
	return fmt.Sprintf("metalplugctl adopt %s erases and offers it", id)
}

// proves reports whether the evidence of a disk is complete, and no process had the disk open.
func (d *disks) proves(e *entry) bool { return d.complete(e) && d.asked(e) }

func (d *disks) complete(e *entry) bool {
	return e.sighting.Offer == nil && !e.work().recheck && d.evidenceOf(e).Proves(d.here(e))
}

// asked reports whether it is known that no process has had the disk open since it has appeared. A look finds no trace of a
// process that only reads.
func (d *disks) asked(e *entry) bool {
	return d.Host.Touch.Holders == nil || d.evidenceOf(e).Asked == d.here(e)
}

// Unheld notes that no process has a disk open that was seen as target. It does not wait.
func (i *Inventory) Unheld(id string, target *device.Target) {
	i.about(id, func(l *loop, e *entry) {
		if e.sighting == nil || !e.sighting.Target.Alike(target) || e.outdated() {
			return
		}
		if v := l.evidenceOf(e); v != nil {
			e.delayed("")
			v.Asked = l.here(e)
			l.keepSoon(e)
		}
	})
}

// doubt returns why a disk that is offered on evidence is not proven to be unused, or nil.
func (d *disks) doubt(e *entry) error {
	v, w, id := d.evidenceOf(e), e.work(), e.device.ID
	offer := e.sighting.Offer
	switch {
	case d.evidenceKey(e) == "":
		return fmt.Errorf("%w: it has no wwid, serial number or diskseq to know it by; give a virtual disk a serial number, or run Linux 5.15 or later", device.ErrUnproven)
	case v != nil && v.Scrub != "" && w.delay != "":
		return fmt.Errorf("%w: adopted, and not erased yet: %s", device.ErrUnproven, w.delay)
	case v != nil && v.Scrub != "":
		return fmt.Errorf("%w: adopted, being erased", device.ErrUnproven)
	case offer != nil && v.Proves(d.here(e)):
		return fmt.Errorf("%w: %s, which is not on it any more; run \"udevadm trigger %s\" if this stays", device.ErrUnproven, evidence.Content(offer), e.device.SysPath)
	case offer != nil:
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, evidence.Content(offer), Way(id, e.sighting.Target))
	case d.proves(e):
		return nil
	case v != nil && v.Kind != "" && w.delay != "":
		return fmt.Errorf("%w: %s", device.ErrUnproven, w.delay)
	case v != nil && v.Kind != "":
		return fmt.Errorf("%w: being checked", device.ErrUnproven)
	case v != nil && v.Found != "":
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, v.Found, Way(id, e.sighting.Target))
	case w.delay != "":
		return fmt.Errorf("%w: %s", device.ErrUnproven, w.delay)
	case v == nil:
		v = &evidence.Evidence{}
	}
	return errors.New(v.Reading())
}

// readable reports whether a disk is to be read for evidence.
func (d *disks) readable(e *entry) bool {
	v := d.evidenceOf(e)
	return !e.lease.Held() && !e.lease.Used && d.needsEvidence(e) && e.sighting.Offer == nil && d.evidenceKey(e) != "" && !d.spares(e) &&
		(v == nil || v.Kind == "") && e.lease.Failure == ""
}

// diskTodo returns the work that the evidence of a disk waits for.
func (d *disks) diskTodo(e *entry) verdict.Todo {
	v := d.evidenceOf(e)
	switch {
	case v != nil && v.Scrub != "":
		return verdict.EraseAdopted
	case d.readable(e) && v != nil && v.Found != "":
		return verdict.ReadAgain
	case d.readable(e):
		return verdict.ReadDisk
	case !e.lease.Used && d.complete(e) && !d.asked(e):
		return verdict.AskHolders
	}
	return verdict.Nothing
}

// Surveyed notes how far the read of a disk has come that was seen as target. The read continued that evidence. Surveyed does
// not wait.
func (i *Inventory) Surveyed(id string, target *device.Target, from evidence.Evidence, s device.Surveyed) {
	i.about(id, func(l *loop, e *entry) {
		if l.readable(e) && e.sighting.Target.Alike(target) && !e.outdated() {
			e.delayed("")
			l.surveyed(e, from, s)
		}
	})
}

// surveyed takes in a part of the read of a disk.
func (l *leases) surveyed(e *entry, from evidence.Evidence, s device.Surveyed) {
	next, ok := l.evidenceOf(e).Surveyed(from, s)
	if !ok {
		return
	}
	if l.setEvidence(e, next); next.Kind != "" {
		e.left, e.seen = left{}, left{}
		e.atWork().recheck = true // it may hold something by now
		l.lookAnew(e)
	}
}

// erased notes that a disk was erased. The appearance that the helper vouches for need not be the one that was seen last.
func (l *leases) erased(e *entry, p device.Prepared) {
	// Before the erasure no process had it open.
	v := evidence.Evidence{Kind: evidence.Erased, Size: p.Size, Since: time.Now().UTC(), Asked: l.presence(e, p.Appearance)}
	if before := l.evidenceOf(e); before != nil && before.Kind == evidence.Adopted {
		v.Kind = evidence.Adopted
	}
	if p.Appearance != e.Appearance {
		v.Of = l.presence(e, p.Appearance)
	}
	e.left, e.seen = left{}, left{}
	_ = l.apply(e, lease.Event{Name: lease.Erased})
	l.setEvidence(e, v)
}

// restoreEvidence takes in the evidence of the last run.
func (d *disks) restoreEvidence(kept map[string]evidence.Evidence, sameBoot bool) {
	for medium, v := range kept {
		switch {
		case sameBoot, v.OutlastsBoot() && !strings.HasPrefix(medium, "boot="):
			d.evidence[medium] = &v
		case v.Scrub != "":
			d.Log.Warn("adoption ended", "device", medium, "err", "the node went down before the erasure: adopt the disk again")
		}
	}
}

// savedEvidence returns the evidence for the state file. A crash may leave other content than was adopted on a disk with work.
func (d *disks) savedEvidence() map[string]evidence.Evidence {
	saved := make(map[string]evidence.Evidence, len(d.evidence))
	for medium, v := range d.evidence {
		record := *v
		if e := d.media[medium]; e != nil && e.busy() {
			record.Fingerprint = ""
		}
		saved[medium] = record
	}
	return saved
}
