// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

const (
	// slowLook is when a look gives its place to another, and goes on.
	slowLook = time.Second
	// StuckLook is when a look counts as stuck. A read of a wedged PCIe device blocks permanently and cannot be cancelled.
	StuckLook = 60 * time.Second
	// retryFirst and retryLast bound the time between looks at a device that is not complete yet, see [pause]. Some drivers
	// send no event when it is. NVIDIA's makes its nodes without one.
	retryFirst = 50 * time.Millisecond
	retryLast  = 5 * time.Minute
	// renameLimit is how long udev may take to report a name that the kernel has given a device ("move" of device_rename in
	// drivers/base/core.c). In between the old path is gone. It took 300 ms in an emulated machine.
	renameLimit = 2 * time.Second
)

// places returns how many looks may run at once. They wait for the kernel more than they compute.
func places() int { return 4 * runtime.GOMAXPROCS(0) }

// phase is how far the look at a subject is.
type phase uint8

const (
	idle    phase = iota
	queued        // it waits for a place
	looking       // it runs and holds a place
	slow          // it runs and has given its place to another
)

// Subject is a udev device that stands for hardware, or may do so.
type Subject struct {
	Sightings []device.Sighting // of the last look

	udev    *udev.Device // the newest that was reported, which the sightings refer to
	phase   phase
	again   bool // and another one is wanted after it
	removed bool // nothing was seen, and the inspector has dropped it
	left    bool // udev has reported it as removed

	began    time.Time   // when the last look began
	looks    int         // how many have come back
	vanished time.Time   // when a look first saw nothing without a report of udev, or zero
	retry    *time.Timer // of the next look at something that is not complete yet
	waiting  time.Time   // since when there is such a look to come
}

// Removed reports whether nothing was seen, and the inspector has dropped the subject.
func (s *Subject) Removed() bool { return s.removed }

// Vanished reports whether the hardware is not at its path any more, and may have another name.
func (s *Subject) Vanished() bool { return !s.vanished.IsZero() }

// Running reports whether a look is under way.
func (s *Subject) Running() bool { return s.phase >= looking }

// Looks returns how many looks have come back.
func (s *Subject) Looks() int { return s.looks }

// Next returns what [Subject.Looks] is once a look is back that begins from now on.
func (s *Subject) Next() int {
	if s.Running() { // that one may have been too early
		return s.looks + 2
	}
	return s.looks + 1
}

// reported takes in a report of udev. A report without news does not replace the old one. The sightings refer to that, and
// both would take memory.
func (s *Subject) reported(d udev.Device) {
	if *s.udev != d {
		newer := d // so that d stays on the stack in most calls
		s.udev = &newer
	}
}

// class returns the class of the devices in the subject, or nil before the first look.
func (s *Subject) class() *device.Class {
	if len(s.Sightings) == 0 {
		return nil
	}
	return s.Sightings[0].Device.Class
}

// lookWhere queues a look at every subject that the function selects, and reports whether there is any.
func (n *Inspector) lookWhere(selects func(*Subject) bool) (found bool) {
	for _, s := range n.subjects {
		if selects(s) {
			found = true
			n.Look(s)
		}
	}
	return found
}

// lookRelated queues a look at every subject at a path, above it or below it.
func (n *Inspector) lookRelated(sysPath string) {
	for s := range n.subjects.related(sysPath) {
		n.Look(s)
	}
}

// Look queues one look at a subject, however often it is called until the look begins.
func (n *Inspector) Look(s *Subject) {
	switch {
	case s.removed, s.phase == queued:
	case s.phase != idle:
		s.again = true
	default:
		s.phase = queued
		n.queue = append(n.queue, s)
	}
}

// Start begins as many looks as there are places.
func (n *Inspector) Start() {
	for len(n.queue) > 0 && n.looking < places() {
		s := n.queue[0]
		n.queue = n.queue[1:]
		s.phase, s.began = looking, time.Now()
		n.looking++
		n.begin(s)
	}
}

// begin looks at a subject outside of the goroutine and posts the sightings.
func (n *Inspector) begin(s *Subject) {
	u, rules, host := s.udev, n.rules, n.Host()
	watch := n.later(slowLook, func() { n.slow(s) })
	go func() {
		sightings := device.Look(host, rules, u)
		watch.Stop()
		n.Post(func() { n.seen(s, sightings) })
	}()
}

// slow gives the place of a look that takes long to another.
func (n *Inspector) slow(s *Subject) {
	if s.phase != looking {
		return
	}
	s.phase = slow
	n.looking--
	n.slowly++
	look := s.looks
	n.later(StuckLook-slowLook, func() {
		if s.looks == look { // still the same look
			n.Stuck(s)
		}
	})
}

// seen takes in the sightings of a look.
func (n *Inspector) seen(s *Subject, sightings []device.Sighting) {
	if s.phase == slow {
		n.slowly--
	} else {
		n.looking--
	}
	s.phase = idle
	s.looks++
	if n.astray(s, sightings) {
		return
	}
	s.Sightings = sightings
	n.retryLater(s, n.Seen(s))
	switch {
	case s.again:
		s.again = false
		n.Look(s)
	case len(sightings) == 0:
		s.removed = true
		n.subjects.remove(s.udev.SysPath)
	}
}

// astray reports whether a look has no news of a subject, since the hardware may have a name that udev will report. The
// sightings from before apply until then.
func (n *Inspector) astray(s *Subject, sightings []device.Sighting) bool {
	switch {
	case !vanished(sightings) || s.left || s.class() == nil || !s.class().Renamed:
		s.vanished, s.left = time.Time{}, false
		return false
	case s.vanished.IsZero():
		s.vanished = time.Now()
		n.later(renameLimit, func() { n.Look(s) })
	case time.Since(s.vanished) >= renameLimit:
		return false
	}
	s.again = false // the next look is one to come
	return true
}

// vanished reports whether a look found nothing at a path, or the device went during the look.
func vanished(sightings []device.Sighting) bool {
	return len(sightings) == 0 || slices.ContainsFunc(sightings, func(s device.Sighting) bool {
		return errors.Is(s.Offer, device.ErrGone) || errors.Is(s.Health, device.ErrGone)
	})
}

// retryLater queues another look at an unfinished subject. The pause grows each time.
func (n *Inspector) retryLater(s *Subject, unfinished bool) {
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	switch {
	case !unfinished:
		s.waiting = time.Time{}
		return
	case s.waiting.IsZero():
		s.waiting = time.Now()
	}
	s.retry = n.later(pause(time.Since(s.waiting), time.Since(s.began)), func() {
		s.retry = nil
		n.Look(s)
	})
}

// pause returns the time between a look at a device that is not complete and the next. It is a quarter of the time since the
// device was first found so. It is not less than the look took, so that the looks do not load a busy node even more.
func pause(since, took time.Duration) time.Duration {
	return min(max(retryFirst, since/4, took), retryLast)
}
