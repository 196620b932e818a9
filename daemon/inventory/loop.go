// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// loop is what the goroutine of [Inventory.Run] owns. None of its methods reads hardware or waits for anything.
type loop struct {
	*Inventory
	rules   []device.Rule
	entries map[string]*entry // by device ID
	owing   map[*entry]bool   // those that are owed
	began   time.Time         // when we started
	looks
	disks
	faults
	cordoned
	publishing
	saving
	settling
}

// looks are what is looked at.
type looks struct {
	polled   map[*device.Class]bool // classes of which a look without event is due
	subjects subjects               // the udev devices that stand for hardware
	queue    []*subject             // to be looked at, in order
	looking  int                    // looks under way that hold a place
	slowly   int                    // looks under way that do not any more

	enumerating bool            // an enumeration is under way
	again       bool            // and another one is wanted after it
	newer       map[string]bool // paths of which an event came while it is: what the event says is newer
	enumerated  bool            // the first one is in

	notes map[string]note // what looks have to know of devices, by ID, apart from those of which there is nothing to know
	noted map[string]note // the same as it was handed to the last look, never written; nil: it has changed since
}

// disks are what is known of disks.
type disks struct {
	evidence map[string]*Evidence // why they count as unused, by medium
	media    map[string]*entry    // the last entry that was seen with a medium
	twins    map[string]bool      // media that two disks have claimed at once since the start
	boot     string               // in which their appearances count
}

// faults are what events and counters say of hardware, until it is over. They apply in one boot.
type faults struct {
	marks   marks
	counted map[count]uint64 // what error counters are measured by
}

// cordoned are the cordons by the ID of the device.
type cordoned struct {
	cordons     map[string]Cordon // replaced, never written
	nextCordons map[string]Cordon // as saved; they take effect once they are on disk
}

// publishing is what the next snapshot is made of.
type publishing struct {
	others       map[*subject][]*Status // hardware without an identity
	dirty        map[*entry]bool        // changed since the last publication
	stale        bool                   // what is seen and not offered changed since then
	resend       map[string]bool        // resources whose list is to be sent again though nothing changed
	cause        time.Time              // when the first event since the last publication arrived
	publishedAt  time.Time
	crowded      bool // many devices have changed in that snapshot
	publishTimer *time.Timer
}

// saving is what the state file still lacks.
type saving struct {
	unsaved   bool // an identity or a fault changed since the last save
	saveTimer *time.Timer
	isTimed   bool // the timer runs
	lost      bool // the state of the last run is lost: each device found at the start may have been cordoned
}

// settling is what the first snapshot, and that of a reload, wait for.
type settling struct {
	isReady      bool
	deadline     time.Time       // unless another device is seen
	lastDeadline time.Time       // in any case
	ruled        []chan struct{} // closed once everything has been looked at by the newest rules
}

// subject is a udev device that stands for hardware, or may do so.
type subject struct {
	udev    *udev.Device // the newest that was reported; what was seen refers to it
	queued  bool         // a look is wanted and has not begun
	running bool         // a look is under way
	again   bool         // and another one is wanted after it
	slow    bool         // it has given its place to another
	removed bool         // nothing was seen: it is none of the inventory's any more
	left    bool         // udev has said that it is gone

	began     time.Time         // when the last look began
	looks     int               // how many have come back
	vanished  time.Time         // when nothing was seen first, though udev has not said so; zero: it was seen
	sightings []device.Sighting // of the last look
	entries   []*entry          // the devices found in it
	contested map[string]bool   // IDs that it claims and another subject has
	retry     *time.Timer       // of the next look at something that is not complete yet
	waiting   time.Time         // since when there is such a look to come
}

// reported takes in what udev says of it. What is no news does not take the place of the same from before, which what was
// seen in it refers to: the memory would be taken twice.
func (s *subject) reported(d udev.Device) {
	if *s.udev != d {
		newer := d // the one of most calls stays on the stack
		s.udev = &newer
	}
}

// class returns the class of what was seen in the subject; nil before the first look.
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
		looks:      looks{polled: make(map[*device.Class]bool), notes: make(map[string]note)},
		disks:      disks{evidence: make(map[string]*Evidence), media: make(map[string]*entry), twins: make(map[string]bool)},
		faults:     faults{marks: make(marks), counted: make(map[count]uint64)},
		publishing: publishing{others: make(map[*subject][]*Status), dirty: make(map[*entry]bool), resend: make(map[string]bool), publishTimer: stoppedTimer()},
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
	l.Log.Debug("uevent", "action", e.Action, "syspath", e.Device.SysPath, "seqnum", e.Seqnum)
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

// hint has everything looked at that an event of one device may concern.
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

// concerns tells whether d may be a subject. What needs sysfs to be told is left to the look.
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

// settled tells whether the first snapshot can be published: the devices are enumerated and looked at, and udev has
// worked off its queue and the devices of the last run are back, unless they have kept us waiting too long.
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

// missingYet is why the first snapshot would not have all that is there; empty: it would.
func (l *loop) missingYet() string {
	looks := len(l.queue) + l.looking + l.slowly
	switch {
	case looks > 0:
		return fmt.Sprintf("devices that are still looked at: %d", looks)
	case !l.Source.Settled():
		return "udevd has not worked off its events"
	}
	for _, e := range l.entries {
		if e.awaited && e.sighting == nil {
			return "devices of the last run are not back"
		}
	}
	return ""
}

// busy tells whether looks are waiting or under way, slow ones apart.
func (l *loop) busy() bool { return len(l.queue) > 0 || l.looking > 0 }

// carryOut carries out the requests that are waiting.
func (l *loop) carryOut() {
	for _, r := range l.requests.take() {
		r(l)
	}
}
