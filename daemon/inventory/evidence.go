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

// evidenceKey returns the key of a disk's evidence, which is its medium, or without one its appearance in this boot. It is
// empty if another disk could not be told from it.
func (l *loop) evidenceKey(e *entry) string {
	switch {
	case e.Medium != "" && !l.twins[e.Medium]:
		return e.Medium
	case e.Appearance != "" && l.faults.Boot != "":
		return l.here(e)
	}
	return ""
}

// bootKey begins the keys of appearances, which the kernel counts from the start in each boot.
func (l *loop) bootKey() string { return "boot=" + l.faults.Boot + " " }

// evidenceOf returns the evidence of a disk, or nil.
func (l *loop) evidenceOf(e *entry) *evidence.Evidence {
	if key := l.evidenceKey(e); key != "" {
		return l.evidence[key]
	}
	return nil
}

// needsEvidence reports whether a device is offered only on evidence.
func (l *loop) needsEvidence(e *entry) bool {
	rule := l.rule(e.resource)
	return l.Host.Touch.Survey != nil && rule != nil && !rule.AllowInUse && e.sighting != nil && e.sighting.Target.IsDisk()
}

// setEvidence records evidence of a disk.
func (l *loop) setEvidence(e *entry, v evidence.Evidence) {
	if key := l.evidenceKey(e); key != "" {
		l.evidence[key] = &v
		l.keepSoon(e)
	}
}

// endEvidence forgets the evidence of a disk. reason is for the log, and empty before a container writes there.
func (l *loop) endEvidence(e *entry, reason string) {
	v := l.evidenceOf(e)
	if v == nil {
		return
	}
	delete(l.evidence, l.evidenceKey(e))
	switch {
	case reason == "":
	case v.Scrub != "":
		l.Log.Warn("adoption ended", "device", e.device.ID, "err", reason+": adopt the disk again")
	default:
		l.Log.Log(context.Background(), LevelNotice, "evidence ended", "device", e.device.ID, "action", v.Kind, "err", reason)
	}
	l.keepSoon(e)
}

func (l *loop) keepSoon(e *entry) {
	l.saveLater()
	l.changed(e)
}

// weigh compares the evidence of a disk with a look.
func (l *loop) weigh(e *entry, s *device.Sighting) {
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
func (l *loop) presence(e *entry, appearance string) string {
	if appearance == "" {
		return l.bootKey() + "directory=" + strconv.FormatUint(e.Instance, 10)
	}
	return l.bootKey() + "diskseq=" + appearance
}

// here is the presence in which the disk was seen last.
func (l *loop) here(e *entry) string { return l.presence(e, e.Appearance) }

// Way returns the command by which the operator gives a disk with data to pods. An adoption belongs to a medium. Without an
// identity it would count for another disk in its place as well.
func Way(id string, target *device.Target) string {
	if target.Medium() == "" {
		return fmt.Sprintf("metalplugctl reset %s --scrub zero erases and offers it, until it is plugged in again", id)
	}
	return fmt.Sprintf("metalplugctl adopt %s erases and offers it", id)
}

// proves reports whether the evidence of a disk is complete, and no process had the disk open.
func (l *loop) proves(e *entry) bool { return l.complete(e) && l.asked(e) }

func (l *loop) complete(e *entry) bool {
	return e.sighting.Offer == nil && !e.work().recheck && l.evidenceOf(e).Proves(l.here(e))
}

// asked reports whether it is known that no process has had the disk open since it has appeared. A look finds no trace of a
// process that only reads.
func (l *loop) asked(e *entry) bool {
	return l.Host.Touch.Holders == nil || l.evidenceOf(e).Asked == l.here(e)
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
func (l *loop) doubt(e *entry) error {
	v, w, id := l.evidenceOf(e), e.work(), e.device.ID
	offer := e.sighting.Offer
	switch {
	case l.evidenceKey(e) == "":
		return fmt.Errorf("%w: it has no wwid, serial number or diskseq to know it by; give a virtual disk a serial number, or run Linux 5.15 or later", device.ErrUnproven)
	case v != nil && v.Scrub != "" && w.delay != "":
		return fmt.Errorf("%w: adopted, and not erased yet: %s", device.ErrUnproven, w.delay)
	case v != nil && v.Scrub != "":
		return fmt.Errorf("%w: adopted, being erased", device.ErrUnproven)
	case offer != nil && v.Proves(l.here(e)):
		return fmt.Errorf("%w: %s, which is not on it any more; run \"udevadm trigger %s\" if this stays", device.ErrUnproven, evidence.Content(offer), e.device.SysPath)
	case offer != nil:
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, evidence.Content(offer), Way(id, e.sighting.Target))
	case l.proves(e):
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
func (l *loop) readable(e *entry) bool {
	v := l.evidenceOf(e)
	return !e.lease.Held() && !e.lease.Used && l.needsEvidence(e) && e.sighting.Offer == nil && l.evidenceKey(e) != "" && !l.spares(e) &&
		(v == nil || v.Kind == "") && e.lease.Failure == ""
}

// diskTodo returns the work that the evidence of a disk waits for.
func (l *loop) diskTodo(e *entry) verdict.Todo {
	v := l.evidenceOf(e)
	switch {
	case v != nil && v.Scrub != "":
		return verdict.EraseAdopted
	case l.readable(e) && v != nil && v.Found != "":
		return verdict.ReadAgain
	case l.readable(e):
		return verdict.ReadDisk
	case !e.lease.Used && l.complete(e) && !l.asked(e):
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
func (l *loop) surveyed(e *entry, from evidence.Evidence, s device.Surveyed) {
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
func (l *loop) erased(e *entry, p device.Prepared) {
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
func (l *loop) restoreEvidence(kept map[string]evidence.Evidence, sameBoot bool) {
	for medium, v := range kept {
		switch {
		case sameBoot, v.OutlastsBoot() && !strings.HasPrefix(medium, "boot="):
			l.evidence[medium] = &v
		case v.Scrub != "":
			l.Log.Warn("adoption ended", "device", medium, "err", "the node went down before the erasure: adopt the disk again")
		}
	}
}

// savedEvidence returns the evidence for the state file. A crash may leave other content than was adopted on a disk with work.
func (l *loop) savedEvidence() map[string]evidence.Evidence {
	saved := make(map[string]evidence.Evidence, len(l.evidence))
	for medium, v := range l.evidence {
		record := *v
		if e := l.media[medium]; e != nil && e.busy() {
			record.Fingerprint = ""
		}
		saved[medium] = record
	}
	return saved
}
