// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// returns gives a device that has dropped off the bus a while to be seen again.
func (l *loop) returns(e *entry) {
	e.atWork().back = time.Now().Add(returnLimit)
	time.AfterFunc(returnLimit, func() { l.post(func(l *loop) { l.heldSince([]*entry{e}) }) })
}

// disk tells whether what a pod writes there stays.
func (e *entry) disk() bool { return e.device.Class != nil && e.device.Class.Disks }

// started notes that a container may be using the device from now on, of pods with these UIDs. What is on a disk counts as
// theirs, unless its resource gives out disks with the host's own data. again: it is a container that goes on with what is
// there: then that is whose it was.
func (l *loop) started(e *entry, pods []string, again bool) {
	if rule := l.rule(e); !again {
		e.leftover = e.disk() && (rule == nil || !rule.AllowInUse) && !l.twins[e.medium]
	}
	e.dirty, e.left, e.seen, e.given = true, remains{}, remains{}, e.medium
	l.endEvidence(e, "")
	e.lingers("")
	e.pods = slices.Concat(e.pods, pods)
	slices.Sort(e.pods)
	e.pods = slices.Compact(e.pods)
}

// startedFor tells whether the device was started for all of these pods, as far as that is known.
func (e *entry) startedFor(pods []string) bool {
	return len(e.pods) == 0 || !slices.ContainsFunc(pods, func(pod string) bool { return !slices.Contains(e.pods, pod) })
}

// lookAnew asks for a look. Until one is back that begins from now on, the last one counts as out of date.
func (l *loop) lookAnew(e *entry) {
	if e.owner == nil || e.owner.removed {
		return
	}
	w := e.atWork()
	w.anew, w.after, e.proof = e.owner, e.owner.looks+1, proof{}
	if e.owner.running {
		w.after++ // the look that is under way may have been too early
	}
	l.look(e.owner)
}

// outdated tells whether the last look was before [loop.lookAnew].
func (e *entry) outdated() bool {
	w := e.work()
	return w.anew != nil && w.anew == e.owner && !e.owner.removed && e.owner.looks < w.after
}

// frozen tells whether what the hardware does is our own doing. What has gone wrong is told all the same.
func (e *entry) frozen(now time.Time) bool {
	w := e.work()
	switch {
	case w.failed != "", e.stuck:
		return false
	case w.under > 0:
		return true
	case w.own && (e.outdated() || e.sighting == nil && now.Before(w.back)):
		return true
	case w.own:
		e.atWork().own = false
	}
	return false
}

// onItsWay holds a disk back of which the kernel removes the attributes, or has not made them all: without its diskseq
// another disk would be taken for it.
func (e *entry) onItsWay(s *device.Sighting) {
	if e.appearance != "" && s.Target.IsDisk() && s.Target.Appearance() == "" {
		s.Target, s.Offer = nil, fmt.Errorf("%w: its diskseq cannot be read", device.ErrIncomplete)
	}
}

// appears notes which appearance of a disk was seen. What a pod has left there was on the one before. Of a disk that says
// nothing of itself, on a kernel that does not count disks, only its directory in sysfs tells that it is another. One that
// appears again while we are at work on it may be another with the same identity: it counts as the same only if the helper
// vouches for it.
func (e *entry) appears(s *device.Sighting) {
	appearance, medium := s.Target.Appearance(), s.Target.Medium()
	other := e.appearance != "" && appearance != e.appearance || e.medium != "" && medium != e.medium
	if appearance == "" && medium == "" {
		other = other || e.instance != 0 && s.Instance != e.instance
	}
	if other {
		w := e.work()
		same := e.medium != "" && medium == e.medium
		vouched := same && appearance != "" && appearance == w.vouched
		if w.suspended || e.leftover && w.under > 0 {
			e.atWork().suspended = same
		}
		if !vouched && w.byHand == EraseByHand { // the operator meant the disk of before
			e.atWork().byHand = 0
		}
		e.leftover, e.proof = e.leftover && vouched, proof{}
	}
	e.appearance, e.medium = appearance, medium
}

// own tells whether a disk is the one that the pods which hold it were given, wherever it has been meanwhile.
func (e *entry) own() bool { return e.held && e.given != "" && e.given == e.medium }

// compare notes what is on a disk that a pod has left and nobody is at work on, and at each look after that makes sure
// that it is the same. What is not is somebody's: another machine's, or an operator's.
func (l *loop) compare(e *entry, s *device.Sighting) {
	w := e.work()
	found := remains{s.Fingerprint, s.Blank}
	known := s.Fingerprint != "" || s.Blank && l.needsEvidence(e)
	if !known || e.held || e.dirty || w.failed != "" || w.under > 0 || e.outdated() {
		return
	}
	if e.left.fingerprint != "" && e.left.fingerprint != s.Asked && e.left.blank == s.Blank {
		return // the probe began before that was known, and has read other places
	}
	before, now := e.wrote, wrote{e.appearance, s.Written}
	grown := now.in != "" && now.in == before.in && now.sectors > before.sectors
	e.seen, e.wrote = found, now
	switch {
	case !e.leftover || e.left == found && !grown:
		return
	case e.left != (remains{}):
		l.foreign(e)
	}
	e.left, l.unsaved = found, true
}

// foreign notes that what is on a disk is somebody's, and no pod's.
func (l *loop) foreign(e *entry) {
	if !e.leftover {
		return
	}
	e.leftover = false
	l.Log.Warn("disk written by others", "device", e.device.ID,
		"err", "what is on it is not what its last pod has left there: it is not erased")
}

// kept returns by what the data that a pod has left is known after the next start: nothing while we may be changing it.
func (e *entry) kept() remains {
	if e.work().under > 0 {
		return remains{}
	}
	return e.left
}
