// SPDX-License-Identifier: Apache-2.0

// Package inspect decides when to inspect hardware. An event, a lost event, the slow audit and a class without events all lead to
// the same request, a look at a path in sysfs. Looks run next to the caller, a few at once, and post their results.
package inspect

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// enumeratePause is the time after a failed enumeration, as long as nothing is known at all.
const enumeratePause = time.Second

// Options configure an inspector.
type Options struct {
	Source udev.Source
	Log    *slog.Logger
	// Post runs a function later in the goroutine that owns the inspector. It does not wait.
	Post func(f func())
	// Host returns the host for a look that begins now.
	Host func() *device.Host
	// Seen takes in the sightings of a look, and reports whether the subject is worth another look without an event.
	Seen func(s *Subject) (unfinished bool)
	// Stuck notes that the look at a subject does not come back.
	Stuck func(s *Subject)
}

// Inspector has the subjects and the looks at them. One goroutine owns it, in which all methods but [Inspector.Counts] run.
// None of them reads hardware or waits.
type Inspector struct {
	Options
	rules    []device.Rule
	polled   map[*device.Class]bool // classes of which a look without event is due
	subjects subjects               // the udev devices that stand for hardware
	queue    []*Subject             // waiting for a look, in order
	looking  int                    // looks under way that hold a place
	slowly   int                    // looks under way that do not any more

	enumerating bool            // an enumeration is under way
	again       bool            // and another one is wanted after it
	newer       map[string]bool // paths with an event since it began, which is newer
	enumerated  bool            // the first one is in

	mu     sync.Mutex
	counts api.Counts
}

// New returns an inspector that knows no subject.
func New(o Options) *Inspector {
	return &Inspector{Options: o, polled: make(map[*device.Class]bool)}
}

// SetRules sets the rules of the looks that begin from now on, and queues a look at everything.
func (n *Inspector) SetRules(rules []device.Rule) {
	n.rules = rules
	for _, s := range n.subjects { // a class of which there was no rule before
		n.pollSubject(s)
	}
	n.Enumerate()
}

// Enumerated reports whether an enumeration is in.
func (n *Inspector) Enumerated() bool { return n.enumerated }

// Enumerating reports whether an enumeration is under way.
func (n *Inspector) Enumerating() bool { return n.enumerating }

// Busy reports whether looks are waiting or running, without slow ones.
func (n *Inspector) Busy() bool { return len(n.queue) > 0 || n.looking > 0 }

// Open returns the number of looks that are waiting or running.
func (n *Inspector) Open() int { return len(n.queue) + n.looking + n.slowly }

// Counts returns the counts. It is safe for concurrent use.
func (n *Inspector) Counts() api.Counts {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts
}

// count counts an event. Mounts and messages of drivers do not come from udevd.
func (n *Inspector) count(e udev.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e.Action {
	case udev.Overflow:
		n.counts.Overflows++
	case udev.Missed, udev.Mounts, udev.Logged:
	default:
		n.counts.Events, n.counts.LastEvent = n.counts.Events+1, e.Received
	}
}

// Event takes in a hint.
func (n *Inspector) Event(e udev.Event) {
	n.count(e)
	switch e.Action {
	case udev.Overflow, udev.Missed:
		n.Enumerate()
	case udev.Mounts:
		n.lookWhere(func(s *Subject) bool { return s.class() != nil && s.class().Disks })
	case udev.Logged:
		n.lookRelated(e.Device.SysPath)
	default:
		n.hint(e)
	}
}

// hint queues a look at everything that an event of one device may concern.
func (n *Inspector) hint(e udev.Event) {
	d := e.Device
	if n.enumerating {
		n.newer[d.SysPath] = true
	}
	s, left := n.subjects.at(d.SysPath), e.Action == "remove"
	switch {
	case s != nil && left:
		s.left = true
	case s != nil:
		s.left = false
		s.reported(d)
	case !left && n.concerns(d):
		n.add(d)
	}
	n.lookRelated(d.SysPath)
	if e.Action == "move" { // udevd does not report that the old path is gone
		n.lookRelated("/sys" + d.Properties.Value("DEVPATH_OLD"))
	}
	for _, c := range device.Classes {
		if c.WokenBy(d, n.rules...) {
			n.lookWhere(func(s *Subject) bool { return s.class() == c })
		}
	}
}

// concerns reports whether d may be a subject. A look decides where sysfs is needed.
func (n *Inspector) concerns(d udev.Device) bool {
	for _, c := range device.Classes {
		if c.Selects(d) {
			return true
		}
	}
	return d.DevNode != "" && n.wanted(&device.Generic)
}

func (n *Inspector) add(d udev.Device) {
	s := &Subject{udev: &d}
	n.subjects.insert(s)
	n.Look(s)
	n.pollSubject(s)
}

// pollSubject polls the classes of a subject that are not polled yet.
func (n *Inspector) pollSubject(s *Subject) {
	for _, c := range device.Classes {
		if c.Every > 0 && !n.polled[c] && c.Selects(*s.udev) && n.wanted(c) {
			n.poll(c)
		}
	}
}

// wanted reports whether any rule is about a class.
func (n *Inspector) wanted(c *device.Class) bool {
	return slices.ContainsFunc(n.rules, func(r device.Rule) bool { return r.Class == c })
}

// poll queues looks at the subjects of a class at its interval, as long as there are any.
func (n *Inspector) poll(c *device.Class) {
	n.polled[c] = true
	n.later(c.Every, func() {
		n.polled[c] = false
		if n.lookWhere(func(s *Subject) bool { return s.class() == c }) {
			n.poll(c)
		}
	})
}

// later posts a function after a pause. The timer may be stopped until then.
func (n *Inspector) later(pause time.Duration, f func()) *time.Timer {
	return time.AfterFunc(pause, func() { n.Post(f) })
}

// Enumerate lists all devices outside of the goroutine and queues a look at each. One enumeration runs at a time. A request in
// the meantime starts another one after it.
func (n *Inspector) Enumerate() {
	if n.enumerating {
		n.again = true
		return
	}
	n.enumerating, n.again = true, false
	n.newer = make(map[string]bool)
	go func() {
		devices, err := n.Source.Enumerate()
		n.Post(func() { n.listed(devices, err) })
	}()
}

// listed takes in an enumeration. An event in the meantime is newer.
func (n *Inspector) listed(devices []udev.Device, err error) {
	n.enumerating = false
	if err != nil {
		n.Log.Error("devices not enumerated", "err", err)
		pause := enumeratePause
		if n.enumerated {
			pause = retryLast
		}
		n.later(pause, n.Enumerate)
	}
	for _, d := range devices {
		s := n.subjects.at(d.SysPath)
		switch {
		case s != nil && !n.newer[d.SysPath]:
			s.reported(d)
		case s == nil && !n.newer[d.SysPath] && n.concerns(d):
			n.add(d)
		}
	}
	if n.enumerated && err == nil {
		n.mu.Lock()
		n.counts.Resyncs++
		n.mu.Unlock()
	}
	n.enumerated = n.enumerated || err == nil
	n.lookWhere(func(*Subject) bool { return true })
	if n.again {
		n.Enumerate()
	}
}
