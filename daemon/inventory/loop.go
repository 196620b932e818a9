// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// loop is the state that the goroutine of [Inventory.Run] owns. None of its methods reads hardware or waits.
type loop struct {
	*Inventory
	rules   []device.Rule
	entries map[string]*entry // by device ID
	owing   map[*entry]bool   // those that are owed
	began   time.Time         // when the daemon started
	looks
	disks
	faults
	cordoned
	publishing
	saving
	settling
}

// looks are the subjects and the looks at them.
type looks struct {
	polled   map[*device.Class]bool // classes of which a look without event is due
	subjects subjects               // the udev devices that stand for hardware
	queue    []*subject             // waiting for a look, in order
	looking  int                    // looks under way that hold a place
	slowly   int                    // looks under way that do not any more

	enumerating bool            // an enumeration is under way
	again       bool            // and another one is wanted after it
	newer       map[string]bool // paths with an event since it began, which is newer
	enumerated  bool            // the first one is in

	notes map[string]device.Note // for looks, by ID, without the zero ones
	noted map[string]device.Note // the copy that the last look got, never written, or nil after a change
}

// disks are the facts about disks.
type disks struct {
	evidence map[string]*Evidence // why they count as unused, by medium
	media    map[string]*entry    // the last entry that was seen with a medium
	twins    map[string]bool      // media that two disks have claimed at once since the start
	granted  map[string][]*entry  // the devices whose pods may open a node, by its number
	boot     string               // in which their appearances count
}

// faults are those that events and counters report of hardware, until they are cleared. They apply in one boot.
type faults struct {
	marks   marks
	counted map[count]uint64 // what error counters are measured by
}

// cordoned are the cordons by the ID of the device.
type cordoned struct {
	cordons     map[string]Cordon // replaced, never written
	nextCordons map[string]Cordon // they take effect once they are on disk
}

// publishing collects the next snapshot.
type publishing struct {
	others       map[*subject][]*Status // hardware without an identity
	dirty        map[*entry]bool        // changed since the last publication
	stale        bool                   // a device that is not offered changed since then
	unmatched    bool                   // devices may make up bundles once no look is waiting
	bundles      map[string]*Status     // as published, by ID
	resend       map[string]bool        // resources whose list is sent again though nothing changed
	cause        time.Time              // when the first event since the last publication arrived
	publishedAt  time.Time
	crowded      bool // many devices have changed in that snapshot
	publishTimer *time.Timer
}

// saving is the work on the state file.
type saving struct {
	unsaved   bool // an identity or a fault changed since the last save
	saveTimer *time.Timer
	isTimed   bool // the timer runs
	lost      bool // the state of the last run is lost, and each device found at the start may have been cordoned
}

// settling is the wait for the first snapshot, and for that of a reload.
type settling struct {
	isReady      bool
	deadline     time.Time       // unless another device is seen
	lastDeadline time.Time       // in any case
	ruled        []chan struct{} // closed once everything has been looked at by the newest rules
}

// phase is how far the look at a subject is.
type phase uint8

const (
	idle    phase = iota
	queued        // it waits for a place
	looking       // it runs and holds a place
	slow          // it runs and has given its place to another
)

// subject is a udev device that stands for hardware, or may do so.
type subject struct {
	udev    *udev.Device // the newest that was reported, which the sightings refer to
	phase   phase
	again   bool // and another one is wanted after it
	removed bool // nothing was seen, and the inventory has dropped it
	left    bool // udev has reported it as removed

	began     time.Time         // when the last look began
	looks     int               // how many have come back
	vanished  time.Time         // when a look first saw nothing without a report of udev, or zero
	sightings []device.Sighting // of the last look
	entries   []*entry          // the devices found in it
	contested map[string]bool   // IDs that it claims and another subject has
	retry     *time.Timer       // of the next look at something that is not complete yet
	waiting   time.Time         // since when there is such a look to come
}

// reported takes in a report of udev. A report without news does not replace the old one. The sightings refer to that, and
// both would take memory.
func (s *subject) reported(d udev.Device) {
	if *s.udev != d {
		newer := d // so that d stays on the stack in most calls
		s.udev = &newer
	}
}

// class returns the class of the devices in the subject, or nil before the first look.
func (s *subject) class() *device.Class {
	if len(s.sightings) == 0 {
		return nil
	}
	return s.sightings[0].Device.Class
}

func newLoop(i *Inventory) *loop {
	now := time.Now()
	return &loop{
		Inventory:  i,
		rules:      i.Rules,
		entries:    make(map[string]*entry),
		owing:      make(map[*entry]bool),
		began:      now,
		looks:      looks{polled: make(map[*device.Class]bool), notes: make(map[string]device.Note)},
		disks:      disks{evidence: make(map[string]*Evidence), media: make(map[string]*entry), twins: make(map[string]bool), granted: make(map[string][]*entry)},
		faults:     faults{marks: make(marks), counted: make(map[count]uint64)},
		publishing: publishing{others: make(map[*subject][]*Status), dirty: make(map[*entry]bool), resend: make(map[string]bool), bundles: make(map[string]*Status), publishTimer: stoppedTimer()},
		saving:     saving{saveTimer: stoppedTimer()},
		settling:   settling{deadline: now.Add(i.Settle), lastDeadline: now.Add(settleMost * i.Settle)},
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// event takes in a hint.
func (l *loop) event(e udev.Event) {
	l.counts.event(e)
	if l.cause.IsZero() {
		l.cause = e.Received
	}
	l.Log.Debug("uevent", "action", e.Action, "syspath", e.Device.SysPath)
	switch e.Action {
	case udev.Overflow, udev.Missed:
		l.enumerate()
	case udev.Mounts:
		l.lookWhere(func(s *subject) bool { return s.class() != nil && s.class().Disks })
	case udev.Logged:
		l.notice(e)
		l.lookRelated(e.Device.SysPath)
	default:
		l.notice(e)
		l.hint(e)
	}
}

// hint queues a look at everything that an event of one device may concern.
func (l *loop) hint(e udev.Event) {
	d := e.Device
	if l.enumerating {
		l.newer[d.SysPath] = true
	}
	if e.Action == "move" {
		l.renamed(d)
	}
	s, left := l.subjects.at(d.SysPath), e.Action == "remove"
	switch {
	case s != nil && left:
		s.left = true
	case s != nil:
		s.left = false
		s.reported(d)
	case !left && l.concerns(d):
		l.add(d)
	}
	l.lookRelated(d.SysPath)
	for _, c := range device.Classes {
		if c.WokenBy(d, l.rules...) {
			l.lookWhere(func(s *subject) bool { return s.class() == c })
		}
	}
}

// concerns reports whether d may be a subject. A look decides where sysfs is needed.
func (l *loop) concerns(d udev.Device) bool {
	for _, c := range device.Classes {
		if c.Selects(d) {
			return true
		}
	}
	return d.DevNode != "" && l.wanted(&device.Generic)
}

func (l *loop) add(d udev.Device) {
	s := &subject{udev: &d}
	l.subjects.insert(s)
	l.look(s)
	l.pollSubject(s)
}

// pollSubject polls the classes of a subject that are not polled yet.
func (l *loop) pollSubject(s *subject) {
	for _, c := range device.Classes {
		if c.Every > 0 && !l.polled[c] && c.Selects(*s.udev) && l.wanted(c) {
			l.poll(c)
		}
	}
}

// wanted reports whether any rule is about a class.
func (l *loop) wanted(c *device.Class) bool {
	return slices.ContainsFunc(l.rules, func(r device.Rule) bool { return r.Class == c })
}

// poll queues looks at the subjects of a class at its interval, as long as there are any.
func (l *loop) poll(c *device.Class) {
	l.polled[c] = true
	time.AfterFunc(c.Every, func() {
		l.post(func(l *loop) {
			l.polled[c] = false
			if l.lookWhere(func(s *subject) bool { return s.class() == c }) {
				l.poll(c)
			}
		})
	})
}

// enumerate lists all devices outside of the loop and queues a look at each. One enumeration runs at a time. A request in
// the meantime starts another one after it.
func (l *loop) enumerate() {
	if l.enumerating {
		l.again = true
		return
	}
	l.enumerating, l.again = true, false
	l.newer = make(map[string]bool)
	go func() {
		devices, err := l.Source.Enumerate()
		l.post(func(l *loop) { l.listed(devices, err) })
	}()
}

// listed takes in an enumeration. An event in the meantime is newer.
func (l *loop) listed(devices []udev.Device, err error) {
	l.enumerating = false
	if err != nil {
		l.Log.Error("devices not enumerated", "err", err)
		pause := time.Second // as long as nothing is known at all
		if l.enumerated {
			pause = retryLast
		}
		time.AfterFunc(pause, func() { l.post((*loop).enumerate) })
	}
	for _, d := range devices {
		s := l.subjects.at(d.SysPath)
		switch {
		case s != nil && !l.newer[d.SysPath]:
			s.reported(d)
		case s == nil && !l.newer[d.SysPath] && l.concerns(d):
			l.add(d)
		}
	}
	if l.enumerated && err == nil {
		l.counts.resyncs.Add(1)
	}
	l.enumerated = l.enumerated || err == nil
	l.lookWhere(func(*subject) bool { return true })
	if l.again {
		l.enumerate()
	}
}

// settled reports whether the first snapshot can be published. Then the devices are enumerated and looked at, and the devices of
// the last run are back, or the time for that is over. udevd has processed the events of the boot before the daemon starts
// (metalplug-mounts.service).
func (l *loop) settled(now time.Time) bool {
	missing := l.missingYet()
	if l.enumerated && (missing == "" || now.After(l.deadline) || now.After(l.lastDeadline)) {
		l.isReady = true
		if l.lost {
			l.cordonKnown()
		}
		if missing != "" {
			l.Log.Warn("started before all was seen", "err", missing)
		}
	}
	return l.isReady
}

// missingYet returns why the first snapshot would be incomplete, or empty.
func (l *loop) missingYet() string {
	if looks := len(l.queue) + l.looking + l.slowly; looks > 0 {
		return fmt.Sprintf("devices that are still looked at: %d", looks)
	}
	for _, e := range l.entries {
		if e.awaited && e.sighting == nil {
			return "devices of the last run are not back"
		}
	}
	return ""
}

// busy reports whether looks are waiting or running, without slow ones.
func (l *loop) busy() bool { return len(l.queue) > 0 || l.looking > 0 }

// carryOut carries out the requests that are waiting.
func (l *loop) carryOut() {
	for _, r := range l.requests.take() {
		r(l)
	}
}
