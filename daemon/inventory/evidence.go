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
	"github.com/metalplug/metalplug/daemon/lease"
)

// Kinds of evidence.
const (
	Blank   = "blank"   // every block was read once
	Erased  = "erased"  // by us, verified
	Adopted = "adopted" // the operator allowed to erase it, and it was erased
)

// maxEvidence bounds the number of disks with evidence, present or not.
const maxEvidence = 1024

// Evidence is the reason why a disk counts as unused. The zero value is none. It belongs to the medium, so that it outlasts
// unplugging, another slot and a reboot.
type Evidence struct {
	Kind  string `json:"kind,omitempty"`  // or empty while the disk is being read
	Size  int64  `json:"size,omitempty"`  // of the disk in bytes, or 0 while unknown
	Read  int64  `json:"read,omitempty"`  // without a Kind, the number of bytes that were read and are blank
	Found string `json:"found,omitempty"` // without a Kind, the content at Read
	Scrub string `json:"scrub,omitempty"` // how to erase an adopted disk, or empty after that
	// Fingerprint is that of the content which the operator adopted, see [device.Reading], or empty if unknown. Other content
	// is not erased.
	Fingerprint string    `json:"fingerprint,omitempty"`
	Since       time.Time `json:"since"`

	// The appearance in Of limits the evidence until a look has confirmed it. Then Of is empty.
	Of string `json:"of,omitempty"`

	// In is the appearance in which Written was the [device.Sighting].Written of the disk, when it was last known that no
	// other process had written there. Each appearance counts from 0.
	In      string `json:"in,omitempty"`
	Written uint64 `json:"written,omitempty"`
	// Asked is the appearance in which no process had the disk open when it was to be offered.
	Asked string `json:"asked,omitempty"`
}

// proves reports whether the evidence is complete, for a disk in that appearance.
func (v *Evidence) proves(appearance string) bool {
	return v != nil && v.Kind != "" && v.Scrub == "" && (v.Of == "" || v.Of == appearance)
}

// Percent returns how much of the disk was read.
func (v Evidence) Percent() int {
	if v.Size <= 0 {
		return 0
	}
	return int(float64(v.Read) / float64(v.Size) * 100)
}

// evidenceKey returns the key of a disk's evidence, which is its medium, or without one its appearance in this boot. It is
// empty if another disk could not be told from it.
func (l *loop) evidenceKey(e *entry) string {
	switch {
	case e.medium != "" && !l.twins[e.medium]:
		return e.medium
	case e.appearance != "" && l.boot != "":
		return l.here(e)
	}
	return ""
}

// bootKey begins the keys of appearances, which the kernel counts from the start in each boot.
func (l *loop) bootKey() string { return "boot=" + l.boot + " " }

// evidenceOf returns the evidence of a disk, or nil.
func (l *loop) evidenceOf(e *entry) *Evidence {
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

// setEvidence records evidence of a disk. Above maxEvidence the oldest of an absent disk goes.
func (l *loop) setEvidence(e *entry, v Evidence) {
	key := l.evidenceKey(e)
	if key == "" {
		return
	}
	l.evidence[key] = &v
	if len(l.evidence) > maxEvidence {
		l.dropOldest(key)
	}
	l.keepSoon(e)
}

func (l *loop) dropOldest(besides string) {
	here := map[string]bool{besides: true}
	for _, e := range l.entries {
		here[l.evidenceKey(e)] = e.sighting != nil || here[l.evidenceKey(e)]
	}
	oldest := ""
	for key, v := range l.evidence {
		if !here[key] && (oldest == "" || v.Since.Before(l.evidence[oldest].Since)) {
			oldest = key
		}
	}
	delete(l.evidence, oldest)
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
	l.unsaved = true
	l.saveLater()
	l.changed(e)
}

// weigh ends evidence of a disk that a look contradicts.
func (l *loop) weigh(e *entry, s *device.Sighting) {
	v := l.evidenceOf(e)
	if v == nil || !s.Target.IsDisk() || e.busy() || e.outdated() {
		return
	}
	if l.checkAppearance(e, v); l.evidenceOf(e) == nil {
		return
	}
	if e.work().recheck && !s.Unread {
		e.atWork().recheck = false
	}
	switch {
	case s.Size > 0 && v.Size == 0:
		v.Size = s.Size
	case s.Size > 0 && v.Size != s.Size:
		l.endEvidence(e, fmt.Sprintf("the size was %d bytes and is %d now", v.Size, s.Size))
		return
	}
	switch seen := l.here(e); {
	case v.In != seen:
		v.In, v.Written = seen, s.Written
		l.keepSoon(e)
	case s.Written > v.Written && !e.lease.Held() && v.Scrub == "" && v.Found == "":
		l.endEvidence(e, "a process wrote to the disk while no pod had it")
		return
	}
	switch {
	case e.lease.Held():
	case s.HostUse(e.lease.Used):
		l.endEvidence(e, s.Offer.Error())
	case v.Scrub != "": // the helper compares its content before it erases that
	case errors.Is(s.Offer, device.ErrData) && s.Blank: // udev has not inspected the disk since its erasure
	case errors.Is(s.Offer, device.ErrData) && v.Found == "": // else a read found data already, and begins there again
		l.endEvidence(e, contentOf(s.Offer))
	}
}

// presence returns what tells a disk in one of its appearances from all other disks with its medium. Where the kernel does not
// count appearances (before Linux 5.15), it is the directory of the disk in sysfs.
func (l *loop) presence(e *entry, appearance string) string {
	if appearance == "" {
		return l.bootKey() + "directory=" + strconv.FormatUint(e.instance, 10)
	}
	return l.bootKey() + "diskseq=" + appearance
}

// here is the presence in which the disk was seen last.
func (l *loop) here(e *entry) string { return l.presence(e, e.appearance) }

// checkAppearance compares the appearance that evidence is limited to with the one that was seen. An erasure proves nothing of
// another disk with the same identity that came in its place, nor does the operator's word about it.
func (l *loop) checkAppearance(e *entry, v *Evidence) {
	seen := l.here(e)
	sameBoot := strings.HasPrefix(v.Of, l.bootKey())
	switch {
	case v.Of == "" || v.Of == seen && v.Scrub != "":
	case v.Of == seen:
		v.Of = ""
		l.keepSoon(e)
	case v.Scrub != "" && !sameBoot: // diskseq starts again with each boot, and the helper compares the content
		v.Of = seen
		l.keepSoon(e)
	default:
		l.endEvidence(e, "the disk was plugged in again before that was done")
	}
}

// contentOf returns what is on a disk out of the reason against its offer.
func contentOf(offer error) string {
	return strings.TrimPrefix(offer.Error(), device.ErrData.Error()+": ")
}

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
	return e.sighting.Offer == nil && !e.work().recheck && l.evidenceOf(e).proves(l.here(e))
}

// asked reports whether it is known that no process has had the disk open since it has appeared. A look finds no trace of a
// process that only reads.
func (l *loop) asked(e *entry) bool {
	return l.Host.Touch.Holders == nil || l.evidenceOf(e).Asked == l.here(e)
}

// Unheld notes that no process has a disk open that was seen as target. It does not wait.
func (i *Inventory) Unheld(id string, target *device.Target) {
	i.post(func(l *loop) {
		e := l.entries[id]
		if e == nil || e.sighting == nil || !e.sighting.Target.Alike(target) || e.outdated() {
			return
		}
		if v := l.evidenceOf(e); v != nil {
			v.Asked, e.atWork().unread = l.here(e), ""
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
	case v != nil && v.Scrub != "" && w.unread != "":
		return fmt.Errorf("%w: adopted, and not erased yet: %s", device.ErrUnproven, w.unread)
	case v != nil && v.Scrub != "":
		return fmt.Errorf("%w: adopted, being erased", device.ErrUnproven)
	case offer != nil && v.proves(l.here(e)):
		return fmt.Errorf("%w: %s, which is not on it any more; run \"udevadm trigger %s\" if this stays", device.ErrUnproven, contentOf(offer), e.device.SysPath)
	case offer != nil:
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, contentOf(offer), Way(id, e.sighting.Target))
	case l.proves(e):
		return nil
	case v != nil && v.Kind != "" && w.unread != "":
		return fmt.Errorf("%w: %s", device.ErrUnproven, w.unread)
	case v != nil && v.Kind != "":
		return fmt.Errorf("%w: being checked", device.ErrUnproven)
	case v != nil && v.Found != "":
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, v.Found, Way(id, e.sighting.Target))
	case w.unread != "":
		return fmt.Errorf("%w: %s", device.ErrUnproven, w.unread)
	case v == nil:
		v = &Evidence{}
	}
	return errors.New(reading(*v))
}

// readable reports whether a disk is to be read for evidence.
func (l *loop) readable(e *entry) bool {
	v := l.evidenceOf(e)
	return !e.lease.Held() && !e.lease.Used && l.needsEvidence(e) && e.sighting.Offer == nil && l.evidenceKey(e) != "" && !l.spares(e) &&
		(v == nil || v.Kind == "") && e.lease.Failure == ""
}

// Surveyed notes how far the read of a disk has come that was seen as target. The read continued that evidence. Surveyed does
// not wait.
func (i *Inventory) Surveyed(id string, target *device.Target, from Evidence, s device.Surveyed) {
	i.post(func(l *loop) {
		e := l.entries[id]
		if e == nil || !l.readable(e) || !e.sighting.Target.Alike(target) || e.outdated() {
			return
		}
		if w := e.work(); w.unread != "" {
			e.atWork().unread = ""
		}
		l.surveyed(e, from, s)
	})
}

// surveyed takes in a part of the read of a disk. It drops the part if the evidence that it continues has ended. If data that
// an earlier part found is gone, another process has changed the disk, and the read begins again.
func (l *loop) surveyed(e *entry, from Evidence, s device.Surveyed) {
	v := from
	switch before := l.evidenceOf(e); {
	case before == nil && from.Since.IsZero():
		v.Since = time.Now().UTC()
	case before == nil, before.Since != from.Since, before.Read != from.Read, before.In != from.In, before.Written != from.Written:
		return
	}
	if v.Read = s.Read; v.Found != "" && s.Content == "" {
		v.Read = 0
	}
	v.Size, v.Found = s.Size, s.Content
	if v.Found == "" && v.Size > 0 && v.Read >= v.Size {
		v = Evidence{Kind: Blank, Size: v.Size, Since: time.Now().UTC(), In: v.In, Written: v.Written}
		e.left, e.seen = remains{}, remains{}
		e.atWork().recheck = true // it may hold something by now
		defer l.lookAnew(e)
	}
	l.setEvidence(e, v)
}

// Unread notes why a disk is not being read, or an adopted one not erased, or with an empty text that it is. It does not wait.
func (i *Inventory) Unread(id, why string) {
	i.post(func(l *loop) {
		if e := l.entries[id]; e != nil && e.work().unread != why {
			e.atWork().unread = why
			l.changed(e)
		}
	})
}

// erased notes that a disk was erased. The appearance that the helper vouches for need not be the one that was seen last.
func (l *loop) erased(e *entry, p device.Prepared) {
	// Before the erasure no process had it open.
	v := Evidence{Kind: Erased, Size: p.Size, Since: time.Now().UTC(), Asked: l.presence(e, p.Appearance)}
	if before := l.evidenceOf(e); before != nil && before.Kind == Adopted {
		v.Kind = Adopted
	}
	if p.Appearance != e.appearance {
		v.Of = l.presence(e, p.Appearance)
	}
	e.left, e.seen = remains{}, remains{}
	_ = l.apply(e, lease.Event{Name: lease.Erased})
	l.setEvidence(e, v)
}

// evidenceRecord is evidence in the file.
type evidenceRecord struct {
	Medium string `json:"medium"`
	Evidence
}

// restoreEvidence takes in the evidence of the last run. An adoption outlasts a boot only if the adopted content is known,
// since the disk may have served elsewhere.
func (l *loop) restoreEvidence(kept []evidenceRecord, sameBoot bool) {
	for _, r := range kept {
		lapsed := r.Of != "" && r.Scrub == "" || r.Scrub != "" && r.Fingerprint == "" || strings.HasPrefix(r.Medium, "boot=")
		switch {
		case !lapsed || sameBoot:
			l.evidence[r.Medium] = &r.Evidence
		case r.Scrub != "":
			l.Log.Warn("adoption ended", "device", r.Medium, "err", "the node went down before the erasure: adopt the disk again")
		}
	}
}
