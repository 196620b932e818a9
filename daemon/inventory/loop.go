// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// loop is what the goroutine of [Inventory.Run] owns. None of its methods reads hardware or waits for anything.
type loop struct {
	*Inventory
	rules    []device.Rule
	polled   map[*device.Class]bool // classes of which a look without event is due
	subjects tree                   // the udev devices that stand for hardware

	queue   []*subject // to be looked at, in order
	looking int        // looks under way that hold a place

	enumerating bool            // an enumeration is under way
	again       bool            // and another one is wanted after it
	newer       map[string]bool // paths of which an event came while it is: what the event says is newer
	enumerated  bool            // the first one is in

	entries map[string]*entry // by device ID
	others  map[*subject][]*Status
	dirty   map[*entry]bool // changed since the last publication
	stale   bool            // what is seen and not offered changed since then
	resend  map[string]bool // resources whose list is to be sent again though nothing changed
	unsaved bool            // an identity or a mark changed since the last save

	marks   marks            // what events say of hardware, until it is over
	counted map[count]uint64 // what error counters are measured by
	boot    string           // for which both hold

	cause        time.Time // when the first event since the last publication arrived
	publishedAt  time.Time
	publishTimer *time.Timer
	saveTimer    *time.Timer
	saving       bool // the timer runs
	isReady      bool
	deadline     time.Time       // of the settling
	ruled        []chan struct{} // closed once everything has been looked at by the newest rules
}

// subject is a udev device that stands for hardware, or may do so.
type subject struct {
	udev      udev.Device       // the newest that was reported
	queued    bool              // a look is wanted and has not begun
	running   bool              // a look is under way
	again     bool              // and another one is wanted after it
	slow      bool              // it has given its place to another
	looks     int               // how many have come back
	removed   bool              // nothing was seen: it is out of the tree
	sightings []device.Sighting // of the last look
	entries   map[string]*entry // the devices found in it, by ID
	contested map[string]bool   // IDs that it claims and another subject has
	retry     *time.Timer       // of the next look at something that is not complete yet
	waiting   time.Time         // since when there is such a look to come
}

// class returns the class of what was seen in the subject; nil before the first look.
func (s *subject) class() *device.Class {
	if len(s.sightings) == 0 {
		return nil
	}
	return s.sightings[0].Device.Class
}

func newLoop(i *Inventory) *loop {
	return &loop{
		Inventory:    i,
		rules:        i.Rules,
		polled:       make(map[*device.Class]bool),
		entries:      make(map[string]*entry),
		others:       make(map[*subject][]*Status),
		dirty:        make(map[*entry]bool),
		resend:       make(map[string]bool),
		marks:        make(marks),
		counted:      make(map[count]uint64),
		publishTimer: stoppedTimer(),
		saveTimer:    stoppedTimer(),
		deadline:     time.Now().Add(i.Settle),
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// event takes in a hint.
func (l *loop) event(e udev.Event) {
	if l.cause.IsZero() {
		l.cause = e.Received
	}
	l.Log.Debug("uevent", "action", e.Action, "syspath", e.Device.SysPath, "seqnum", e.Seqnum)
	switch e.Action {
	case udev.Overflow:
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

// hint has everything looked at that an event of one device may concern.
func (l *loop) hint(e udev.Event) {
	d := e.Device
	if l.enumerating {
		l.newer[d.SysPath] = true
	}
	if s := l.subjects.at(d.SysPath); s != nil && e.Action != "remove" {
		s.udev = d
	} else if s == nil && e.Action != "remove" && l.concerns(d) {
		l.add(d)
	}
	l.lookRelated(d.SysPath)
	for _, c := range device.Classes {
		if c.WokenBy(d) {
			l.lookWhere(func(s *subject) bool { return s.class() == c })
		}
	}
}

// concerns tells whether d may be a subject. What needs sysfs to be told is left to the look.
func (l *loop) concerns(d udev.Device) bool {
	for _, c := range device.Classes {
		if c.Selects(d) {
			return true
		}
	}
	for _, r := range l.rules {
		if r.Class == &device.Generic && d.DevNode != "" {
			return true
		}
	}
	return false
}

func (l *loop) add(d udev.Device) {
	s := &subject{udev: d, entries: make(map[string]*entry)}
	l.subjects.insert(d.SysPath, s)
	l.look(s)
	for _, c := range device.Classes {
		if c.Every > 0 && !l.polled[c] && c.Selects(d) && l.wanted(c) {
			l.poll(c)
		}
	}
}

// wanted tells whether any rule is about a class.
func (l *loop) wanted(c *device.Class) bool {
	return slices.ContainsFunc(l.rules, func(r device.Rule) bool { return r.Class == c })
}

// poll has the subjects of a class looked at after its interval, and so on for as long as there are any.
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

// enumerate lists all devices beside the loop and has each looked at. One enumeration runs at a time; a request
// meanwhile makes for another one after it.
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

// listed takes in an enumeration. Where an event came meanwhile, the event is newer.
func (l *loop) listed(devices []udev.Device, err error) {
	l.enumerating = false
	if err != nil {
		l.Log.Error("devices not enumerated", "err", err)
		time.AfterFunc(l.enumerateLater(), func() { l.post((*loop).enumerate) })
	}
	for _, d := range devices {
		s := l.subjects.at(d.SysPath)
		switch {
		case s != nil && !l.newer[d.SysPath]:
			s.udev = d
		case s == nil && !l.newer[d.SysPath] && l.concerns(d):
			l.add(d)
		}
	}
	l.enumerated = l.enumerated || err == nil
	l.lookWhere(func(*subject) bool { return true })
	if l.again {
		l.enumerate()
	}
}

// enumerateLater is when to enumerate again what could not be enumerated: soon, as long as nothing is known at all.
func (l *loop) enumerateLater() time.Duration {
	if l.enumerated {
		return retryLast
	}
	return time.Second
}

// settled tells whether the first snapshot can be published: the devices are enumerated and looked at, and udev has
// worked off its queue and the devices of the last run are back, unless they have kept us waiting too long.
func (l *loop) settled(now time.Time) bool {
	settled := !l.busy() && l.Source.Settled() && l.allBack()
	if l.enumerated && (settled || now.After(l.deadline)) {
		l.isReady = true
	}
	return l.isReady
}

// busy tells whether looks are waiting or under way, slow ones apart.
func (l *loop) busy() bool { return len(l.queue) > 0 || l.looking > 0 }

func (l *loop) allBack() bool {
	for _, e := range l.entries {
		if e.awaited && e.sighting == nil {
			return false
		}
	}
	return true
}
