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
	// slowTimeout is how long an inspection may occupy a slot. A slower inspection continues, but frees its slot for another
	// inspection.
	slowTimeout = time.Second
	// StuckTimeout is how long an inspection may take before it is considered stuck. A read from a hung PCIe device blocks
	// indefinitely and cannot be cancelled.
	StuckTimeout = 60 * time.Second
	// retryFirst and retryLast are the minimum and maximum pause between two inspections of an incomplete device (see [pause]). The
	// inspector must retry, because some drivers cause no event when a device becomes complete. For example, NVIDIA's driver creates
	// its device nodes without an event.
	retryFirst = 50 * time.Millisecond
	retryLast  = 5 * time.Minute
	// renameLimit is the maximum time that udev may take to report a device's new name ("move" from device_rename in
	// drivers/base/core.c). During the rename, the old path no longer exists. On an emulated machine, udev took 300 ms to report the
	// new name.
	renameLimit = 2 * time.Second
)

// maxRunning returns the number of slots, which is the maximum number of simultaneous inspections, not counting slow ones. There
// are more slots than processors, because an inspection spends most of its time waiting for the kernel.
func maxRunning() int { return 4 * runtime.GOMAXPROCS(0) }

// phase is the state of a subject's inspection.
type phase uint8

const (
	idle       phase = iota
	queued           // the inspection is waiting for a slot
	inspecting       // the inspection is running and occupies a slot
	slow             // the inspection is running, but has lost its slot
)

// Subject is a udev device that represents, or may represent, hardware.
type Subject struct {
	Sightings []device.Sighting // results of the last inspection

	udev         *udev.Device // last report from udev, which shares memory with the sightings
	phase        phase
	inspectAgain bool // another inspection is needed after the current one
	removed      bool // an inspection found nothing, and the inspector has dropped the subject
	gone         bool // udev has reported that the device was removed

	began       time.Time   // when the last inspection began
	inspections int         // number of finished inspections
	vanished    time.Time   // when an inspection first found nothing before udev reported a removal, or zero
	retry       *time.Timer // starts the next inspection of an incomplete device
	waiting     time.Time   // when the device was first found incomplete, or zero
}

// Removed reports whether the inspector has dropped the subject because an inspection found no hardware.
func (s *Subject) Removed() bool { return s.removed }

// Vanished reports whether the last inspection found no hardware, perhaps because the device is being renamed.
func (s *Subject) Vanished() bool { return !s.vanished.IsZero() }

// Due reports whether an inspection of the subject is running or waiting for a slot.
func (s *Subject) Due() bool { return s.phase != idle }

// Inspections returns the number of finished inspections of the subject.
func (s *Subject) Inspections() int { return s.inspections }

// Next returns a future value of [Subject.Inspections]. When Inspections has this value, an inspection that began after this call
// has finished.
func (s *Subject) Next() int {
	if s.phase >= inspecting { // a running inspection began before this call, so its result may be too old
		return s.inspections + 2
	}
	return s.inspections + 1
}

// storeReport stores a report from udev. An equal report does not replace the old one, because the sightings share memory with
// the old one.
func (s *Subject) storeReport(d udev.Device) {
	if *s.udev != d {
		newer := d // this copy lets d stay on the stack in most calls
		s.udev = &newer
	}
}

// class returns the class of the subject's devices, or nil before the first inspection.
func (s *Subject) class() *device.Class {
	if len(s.Sightings) == 0 {
		return nil
	}
	return s.Sightings[0].Device.Class
}

// inspectWhere queues an inspection of every subject that the function selects, and reports whether there was at least one.
func (n *Inspector) inspectWhere(selects func(*Subject) bool) (found bool) {
	for _, s := range n.subjects {
		if selects(s) {
			found = true
			n.Inspect(s)
		}
	}
	return found
}

// inspectRelated queues an inspection of every subject at, above or below a path.
func (n *Inspector) inspectRelated(sysPath string) {
	for s := range n.subjects.related(sysPath) {
		n.Inspect(s)
	}
}

// Inspect queues an inspection of a subject. Further calls have no effect until the inspection begins.
func (n *Inspector) Inspect(s *Subject) {
	switch {
	case s.removed, s.phase == queued:
	case s.phase != idle:
		s.inspectAgain = true
	default:
		s.phase = queued
		n.queue = append(n.queue, s)
	}
}

// Start begins as many queued inspections as there are free slots.
func (n *Inspector) Start() {
	for len(n.queue) > 0 && n.running < maxRunning() {
		s := n.queue[0]
		n.queue = n.queue[1:]
		s.phase, s.began = inspecting, time.Now()
		n.running++
		n.begin(s)
	}
}

// begin starts a goroutine that inspects a subject and then posts the sightings.
func (n *Inspector) begin(s *Subject) {
	u, rules, host := s.udev, n.rules, n.Host()
	watch := n.postAfter(slowTimeout, func() { n.freeSlot(s) })
	go func() {
		sightings := device.Inspect(host, rules, u)
		watch.Stop()
		n.Post(func() { n.finish(s, sightings) })
	}()
}

// freeSlot frees the slot of an inspection that is still running after slowTimeout, and calls Stuck if it is still running after
// StuckTimeout.
func (n *Inspector) freeSlot(s *Subject) {
	if s.phase != inspecting {
		return
	}
	s.phase = slow
	n.running--
	n.slowCount++
	number := s.inspections
	n.postAfter(StuckTimeout-slowTimeout, func() {
		if s.inspections == number { // the same inspection is still running
			n.Stuck(s)
		}
	})
}

// finish processes the sightings from a finished inspection.
func (n *Inspector) finish(s *Subject, sightings []device.Sighting) {
	if s.phase == slow {
		n.slowCount--
	} else {
		n.running--
	}
	s.phase = idle
	s.inspections++
	if n.mayBeRenamed(s, sightings) {
		return
	}
	s.Sightings = sightings
	n.retryLater(s, n.Seen(s))
	switch {
	case s.inspectAgain:
		s.inspectAgain = false
		n.Inspect(s)
	case len(sightings) == 0:
		s.removed = true
		n.subjects.remove(s.udev.SysPath)
	}
}

// mayBeRenamed reports whether an inspection may have found nothing because the hardware is being renamed. During a rename, the
// previous sightings apply until udev reports the new name or renameLimit has passed.
func (n *Inspector) mayBeRenamed(s *Subject, sightings []device.Sighting) bool {
	switch {
	case !hasVanished(sightings) || s.gone || s.class() == nil || !s.class().Renamed:
		s.vanished, s.gone = time.Time{}, false
		return false
	case s.vanished.IsZero():
		s.vanished = time.Now()
		n.postAfter(renameLimit, func() { n.Inspect(s) })
	case time.Since(s.vanished) >= renameLimit:
		return false
	}
	s.inspectAgain = false // the timer above requests the next inspection
	return true
}

// hasVanished reports whether an inspection found nothing, or whether the device vanished during the inspection.
func hasVanished(sightings []device.Sighting) bool {
	return len(sightings) == 0 || slices.ContainsFunc(sightings, func(s device.Sighting) bool {
		return errors.Is(s.Offer, device.ErrGone) || errors.Is(s.Health, device.ErrGone)
	})
}

// retryLater queues another inspection of an unfinished subject. The delay grows with each attempt.
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
	s.retry = n.postAfter(pause(time.Since(s.waiting), time.Since(s.began)), func() {
		s.retry = nil
		n.Inspect(s)
	})
}

// pause returns the time until the next inspection of an incomplete device. The pause is a quarter of the time since the device
// was first found incomplete, but not shorter than the last inspection. On a busy node, inspections take longer, and retries are
// therefore less frequent. The result is at least retryFirst and at most retryLast.
func pause(since, took time.Duration) time.Duration {
	return min(max(retryFirst, since/4, took), retryLast)
}
