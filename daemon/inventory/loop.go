// SPDX-License-Identifier: Apache-2.0

package inventory

import (
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
	unsaved bool            // an identity changed since the last save

	cause        time.Time // when the first event since the last publication arrived
	publishedAt  time.Time
	publishTimer *time.Timer
	isReady      bool
	deadline     time.Time // of the settling
}

// subject is a udev device that stands for hardware, or may do so.
type subject struct {
	udev      udev.Device       // the newest that was reported
	queued    bool              // a look is wanted and has not begun
	running   bool              // a look is under way
	again     bool              // and another one is wanted after it
	slow      bool              // it has given its place to another
	removed   bool              // nothing was seen: it is out of the tree
	sightings []device.Sighting // of the last look
	entries   map[string]*entry // the devices found in it, by ID
	contested map[string]bool   // IDs that it claims and another subject has
	retry     *time.Timer       // of the next look at something that is not complete yet
	waiting   time.Time         // since when there is such a look to come
}

const (
	// retryFirst and retryLast bound the time between looks at a device that is not complete yet: some drivers say
	// nothing when they are (NVIDIA's makes its nodes without an event). In between it is a quarter of the time since.
	retryFirst = 50 * time.Millisecond
	retryLast  = 5 * time.Minute
)

func newLoop(i *Inventory) *loop {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &loop{
		Inventory:    i,
		rules:        i.Rules,
		polled:       make(map[*device.Class]bool),
		entries:      make(map[string]*entry),
		others:       make(map[*subject][]*Status),
		dirty:        make(map[*entry]bool),
		resend:       make(map[string]bool),
		publishTimer: timer,
		deadline:     time.Now().Add(i.Settle),
	}
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
		l.lookWhere(func(s *subject) bool { return s.udev.Subsystem == "block" })
	default:
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
	for s := range l.subjects.related(d.SysPath) {
		l.look(s)
	}
	for _, c := range device.Classes {
		if c.WokenBy(d) {
			l.lookWhere(func(s *subject) bool { return c.Selects(s.udev) })
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
		if c.Every > 0 && !l.polled[c] && c.Selects(d) {
			l.poll(c)
		}
	}
}

// poll has the subjects of a class looked at after its interval, and so on for as long as there are any.
func (l *loop) poll(c *device.Class) {
	l.polled[c] = true
	time.AfterFunc(c.Every, func() {
		l.post(func(l *loop) {
			l.polled[c] = false
			if l.lookWhere(func(s *subject) bool { return c.Selects(s.udev) }) {
				l.poll(c)
			}
		})
	})
}

// lookWhere has every subject looked at that the function selects, and tells whether there is any.
func (l *loop) lookWhere(selects func(*subject) bool) (found bool) {
	l.subjects.all(func(s *subject) bool {
		if selects(s) {
			found = true
			l.look(s)
		}
		return true
	})
	return found
}

func (l *loop) lookAgain(ids []string) {
	for _, id := range ids {
		if e := l.entries[id]; e != nil && e.owner != nil {
			l.look(e.owner)
		}
	}
}

// look has a subject looked at: once, however often it is asked for until the look begins.
func (l *loop) look(s *subject) {
	switch {
	case s.queued || s.removed:
	case s.running:
		s.again = true
	default:
		s.queued = true
		l.queue = append(l.queue, s)
	}
}

// startLooks begins as many looks as there are places.
func (l *loop) startLooks() {
	for len(l.queue) > 0 && l.looking < places() {
		s := l.queue[0]
		l.queue = l.queue[1:]
		s.queued, s.running = false, true
		l.looking++
		l.begin(s)
	}
}

// begin looks at a subject beside the loop and posts what was seen.
func (l *loop) begin(s *subject) {
	u, rules := s.udev, l.rules
	watch := time.AfterFunc(slowLook, func() { l.post(func(l *loop) { l.slow(s, u) }) })
	go func() {
		sightings := device.Look(l.Host, rules, u)
		watch.Stop()
		l.post(func(l *loop) { l.seen(s, sightings) })
	}()
}

// slow gives the place of a look that takes long to another.
func (l *loop) slow(s *subject, u udev.Device) {
	if !s.running || s.slow {
		return
	}
	s.slow = true
	l.looking--
	time.AfterFunc(stuckLook-slowLook, func() { l.post(func(l *loop) { l.stuck(s, u) }) })
}

// stuck marks the devices of a subject whose look does not come back.
func (l *loop) stuck(s *subject, u udev.Device) {
	if !s.slow || s.udev.SysPath != u.SysPath {
		return
	}
	for _, e := range s.entries {
		e.stuck = true
		l.changed(e)
	}
}

// seen takes in what a look saw.
func (l *loop) seen(s *subject, sightings []device.Sighting) {
	if !s.slow {
		l.looking--
	}
	s.running, s.slow = false, false
	s.sightings = sightings
	l.claim(s)
	l.retryLater(s)
	switch {
	case s.again:
		s.again = false
		l.look(s)
	case len(sightings) == 0:
		s.removed = true
		l.subjects.remove(s.udev.SysPath)
	}
}

// retryLater has a subject looked at again that is not complete, or claims what another has: longer and longer after.
func (l *loop) retryLater(s *subject) {
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	switch {
	case !s.unfinished():
		s.waiting = time.Time{}
		return
	case s.waiting.IsZero():
		s.waiting = time.Now()
	}
	s.retry = time.AfterFunc(min(max(retryFirst, time.Since(s.waiting)/4), retryLast), func() {
		l.post(func(l *loop) {
			s.retry = nil
			l.look(s)
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
		time.AfterFunc(retryLast, func() { l.post((*loop).enumerate) })
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

// settled tells whether the first snapshot can be published: the devices are enumerated and looked at, and udev has
// worked off its queue and the devices of the last run are back, unless they have kept us waiting too long.
func (l *loop) settled(now time.Time) bool {
	if !l.enumerated || l.busy() {
		return l.isReady
	}
	if now.Before(l.deadline) && !(l.Source.Settled() && l.allBack()) {
		return l.isReady
	}
	l.isReady = true
	return true
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
