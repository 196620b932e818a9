// SPDX-License-Identifier: Apache-2.0

package inventory

import (
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
	if rule := l.rule(e); !again && (rule == nil || !rule.AllowInUse) {
		e.leftover = e.disk()
	}
	e.dirty, e.presumed, e.print, e.seen, e.given = true, false, 0, 0, e.medium
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

// appears notes which appearance of a disk was seen. What a pod has left there was on the one before. Of a disk that says
// nothing of itself, on a kernel that does not count disks, only its directory in sysfs tells that it is another. One that
// says that it is the same, and has appeared anew while we are at work on it, was reset by us.
func (e *entry) appears(s *device.Sighting) {
	appearance, medium := s.Target.Appearance(), s.Target.Medium()
	other := e.appearance != "" && appearance != e.appearance || e.medium != "" && medium != e.medium
	if appearance == "" && medium == "" {
		other = other || e.instance != 0 && s.Instance != e.instance
	}
	if other {
		same := e.medium != "" && medium == e.medium
		w := e.work()
		ours := w.under > 0 || w.own && w.failed == ""
		e.leftover, e.proof = e.leftover && same && ours, proof{}
	}
	e.appearance, e.medium = appearance, medium
}

// own tells whether a disk is the one that the pods which hold it were given, wherever it has been meanwhile.
func (e *entry) own() bool { return e.held && e.given != "" && e.given == e.medium }

// compare notes what is on a disk that a pod has left and nobody is at work on, and at each look after that makes sure
// that it is the same. What is not is somebody's: another machine's, or an operator's.
func (l *loop) compare(e *entry, s *device.Sighting) {
	w := e.work()
	if s.Print == 0 || e.held || e.dirty || w.failed != "" || w.under > 0 || e.outdated() {
		return
	}
	e.seen = s.Print
	switch {
	case !e.leftover || e.print == s.Print:
		return
	case e.print != 0:
		l.foreign(e)
	}
	e.print, l.unsaved = s.Print, true
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

// kept returns the number by which what a pod has left is known after the next start: none while we may be changing it.
func (e *entry) kept() uint64 {
	if e.work().under > 0 {
		return 0
	}
	return e.print
}
