// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// What happens to a device between two pods. The inventory keeps account of it; package turnover does it.

// returnLimit is how long after a reset that went well a device may be missing: the helper has seen it come back, udev
// has yet to tell us.
const returnLimit = 10 * time.Second

// Outcome is what has come of work on a device; the zero value: nothing was done to it.
type Outcome struct {
	Err         error    // why it could not be done: the device is Unhealthy until it is
	ByHand      ByHand   // with Err: the work that an operator had ordered
	Touched     bool     // what is on the disk may be another than before: an erasure has gone wrong
	Fingerprint string   // with Touched: that of an adopted disk by now, as in [Evidence]
	Foreign     bool     // what is on the disk is not what a pod has left there: nothing was done to it
	Started     bool     // a container is about to start with it
	Pods        []string // UIDs of the pods that it is started for, as far as they are known
	Mended      bool     // what had gone wrong before is over, as it is when it is cleared or started
	Cleared     bool     // it is fit for the next pod: no process has it open, and the work of the resource after a release is done
}

// ByHand is the work on a device that an operator had ordered; the zero value: none, the daemon did it by itself.
type ByHand uint8

// Work that an operator can order. The state file has the names.
const (
	ResetByHand ByHand = iota + 1
	EraseByHand
)

var byHandNames = [...]string{ResetByHand: "reset", EraseByHand: "erase"}

// String returns the name; empty: nothing.
func (b ByHand) String() string { return byHandNames[b] }

// MarshalText returns the name.
func (b ByHand) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText takes a name. One that a later version has made up counts as an erasure, for which least makes good.
func (b *ByHand) UnmarshalText(name []byte) error {
	if *b = ByHand(slices.Index(byHandNames[:], string(name))); *b > EraseByHand {
		*b = EraseByHand
	}
	return nil
}

// none tells whether nothing was done.
func (o Outcome) none() bool {
	return o.Err == nil && !o.Started && !o.Mended && !o.Cleared && !o.Foreign
}

// Work notes that something is being done to a device. Until as many calls of [Inventory.Worked] and a look after that it
// stays as it is in the eyes of the kubelet, whatever the hardware does meanwhile; with a reason, which people are told,
// it is Unhealthy until then. Looks do not open it meanwhile. It does not wait.
func (i *Inventory) Work(id, reason string) {
	i.post(func(l *loop) {
		if e := l.entries[id]; e != nil {
			w := e.atWork()
			if w.under == 0 {
				w.from, w.vouched, w.suspended = e.appearance, "", false
			}
			w.under++
			w.why = cmp.Or(reason, w.why)
			l.working.Store(id, true)
			// If we end before we have noted what has come of it, it has gone for good.
			if v := l.evidenceOf(e); e.left != (remains{}) || v != nil && v.Fingerprint != "" {
				l.keepSoon(e)
			}
			l.changed(e)
		}
	})
}

// works tells whether something is being done to a device.
func (i *Inventory) works(id string) bool {
	_, works := i.working.Load(id)
	return works
}

// Worked notes what has come of work that [Inventory.Work] has announced. It does not wait.
func (i *Inventory) Worked(id string, o Outcome) {
	i.post(func(l *loop) {
		if e := l.entries[id]; e != nil {
			w := e.atWork()
			other := w.under > 0 && e.appearance != w.from && e.appearance != w.vouched
			if w.under = max(0, w.under-1); w.under == 0 {
				w.why = ""
				l.working.Delete(id)
			}
			if l.worked(e, o); o.Started && other { // then it is not the disk that was prepared
				e.leftover = false
			}
		}
	})
}

// Lingers notes who has a device open though its pod is gone; empty: nobody any more. It does not wait.
func (i *Inventory) Lingers(id, who string) {
	i.post(func(l *loop) {
		if e := l.entries[id]; e != nil && e.work().lingerer != who {
			e.lingers(who)
			l.changed(e)
		}
	})
}

func (l *loop) worked(e *entry, o Outcome) {
	w := e.atWork()
	switch {
	case o.Err != nil:
		w.failed, w.byHand = o.Err.Error(), o.ByHand
	case !o.none():
		w.failed, w.byHand = "", 0
	}
	v := l.evidenceOf(e)
	if !o.none() { // what was written was our doing
		if e.wrote = (wrote{}); v != nil {
			v.In = ""
		}
	}
	if o.Touched {
		if e.left, e.seen = (remains{}), (remains{}); v != nil {
			v.Fingerprint = o.Fingerprint
		}
	}
	if o.Foreign {
		l.foreign(e)
		l.endEvidence(e, "others have written to the disk")
	}
	if o.Cleared { // what is due stays: a pod may have come meanwhile
		e.dirty, e.pods, e.given = false, nil, ""
		e.lingers("")
	}
	if o.Started {
		l.hold(e, true)
		again := e.dirty && !e.due // nothing is erased then
		e.due = false
		l.started(e, o.Pods, again)
	}
	l.unsaved = true
	l.saveLater()
	w.own = true
	if o.Err == nil && (e.owner == nil || e.owner.removed || e.sighting == nil) {
		l.returns(e)
	}
	l.lookAnew(e)
	l.changed(e)
}

// leave ends the account of a device that is no more in the offer. Only that nobody may have a disk before it is erased
// outlasts that, and everything else but the erasure: it may be back.
func (e *entry) leave() {
	e.due = false
	if w := e.worked; w != nil {
		w.failed, w.byHand, w.lingerer = "", 0, ""
	}
	if !e.disk() {
		e.dirty, e.pods, e.given = false, nil, ""
	}
}

// rule returns the rule of an entry's resource; nil if it is not configured.
func (l *loop) rule(e *entry) *device.Rule {
	for i := range l.rules {
		if l.rules[i].Resource == e.resource {
			return &l.rules[i]
		}
	}
	return nil
}

// erasable tells whether all that stands against offering a device is what a pod has left on it, and that will be erased
// before anybody else sees it.
func (l *loop) erasable(e *entry) bool {
	return device.OnlyData(e.sighting.Offer) && l.spares(e) && (e.dirty || e.left == e.seen)
}

// spares tells whether a disk is offered whatever a pod has left on it.
func (l *loop) spares(e *entry) bool {
	if !e.offered || !e.leftover {
		return false
	}
	rule := l.rule(e)
	return rule != nil && (rule.ErasedAtStart || rule.ClearedAtRelease && e.dirty)
}

// tellSpared lets looks know whether a disk is offered whatever is on it.
func (l *loop) tellSpared(e *entry) {
	switch {
	case !e.disk():
		return
	case l.spares(e):
		l.spared.Store(e.device.ID, true)
	default:
		l.spared.Delete(e.device.ID)
	}
	if v := l.evidenceOf(e); v != nil && v.Kind != "" && v.Scrub == "" {
		l.proven.Store(e.device.ID, true)
	} else {
		l.proven.Delete(e.device.ID)
	}
	if e.leftover && e.left.fingerprint != "" {
		l.prints.Store(e.device.ID, e.left.fingerprint)
	} else {
		l.prints.Delete(e.device.ID)
	}
}

// spares tells whether a disk is offered whatever is on it.
func (i *Inventory) spares(id string) bool {
	_, spared := i.spared.Load(id)
	return spared
}

// fingerprint returns by what the data that a pod has left on a disk is known; empty: it is not known.
func (i *Inventory) fingerprint(id string) string {
	known, _ := i.prints.Load(id)
	text, _ := known.(string)
	return text
}

// uncleared tells whether nobody may have a device before it was cleared.
func (l *loop) uncleared(e *entry) bool {
	rule := l.rule(e)
	return e.dirty && rule != nil && rule.ClearedAtRelease
}

// waiting returns for what a device waits that no pod holds any more; empty: for nothing.
func (l *loop) waiting(e *entry) string {
	switch {
	case e.held:
		return ""
	case e.dirty && e.work().lingerer != "":
		return "its pod is gone, but " + e.work().lingerer
	case l.uncleared(e):
		return "being cleared after its last pod"
	case e.dirty && l.needsEvidence(e) && !l.spares(e):
		return fmt.Sprintf("%v: %s", device.ErrUnproven, justLeft)
	case l.uninitialised(e) != "":
		return cmp.Or(e.work().uninit, "being initialised")
	}
	return ""
}

// turn fills in how a device stands between two pods.
func (l *loop) turn(e *entry, s *Status) {
	s.Due, s.Dirty, s.Leftover, s.Own, s.Pods = e.due, e.dirty, e.leftover, e.own(), e.pods
	w := e.work()
	// A disk that is not what a pod has left, or that nothing erases now, has only to be free of the pod's processes.
	rule := l.rule(e)
	idle := e.dirty && e.disk() && (!e.leftover || rule != nil && !rule.ClearedAtRelease)
	s.Pending = !e.held && (e.offered && (e.dirty || w.failed != "") || idle)
	s.Failure, s.FailedByHand, s.Fingerprint, s.LeftBlank = w.failed, w.byHand, e.left.fingerprint, e.left.blank
	s.Uncleared = l.uncleared(e)
	s.Init = l.uninitialised(e)
	s.Erasable = e.sighting != nil && l.erasable(e)
}

// emptied forgets that a pod has left something on a disk once the host uses it, or once it is seen to be empty and nobody
// has it: what comes next is somebody else's. What is built on it while it is not cleared may be the pod's doing: udev
// assembles an array of what looks like a part of one.
func (l *loop) emptied(e *entry, now time.Time) {
	if e.sighting == nil {
		return
	}
	empty := !e.held && !e.dirty && !e.outdated() && e.sighting.Offer == nil && !l.erasedAtStart(e)
	if (empty || e.sighting.HostUse(e.held || e.dirty)) && !e.frozen(now) {
		e.leftover = false
	}
}

// erasedAtStart reports whether a disk that holds a pod's data need not be read: what is there, if anything, is erased
// before the next container starts.
func (l *loop) erasedAtStart(e *entry) bool { return l.needsEvidence(e) && l.spares(e) }

// finish notes what is still waiting when the inventory stops, so that it is kept.
func (l *loop) finish() {
	for range len(l.requests) {
		(<-l.requests)(l)
	}
	l.unsaved = l.unsaved || len(l.dirty) > 0
}
