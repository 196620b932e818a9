// SPDX-License-Identifier: Apache-2.0

// Package inspect decides when to inspect hardware. Events, lost events, the periodic check and class polling all result in the
// same kind of request, which is to inspect a path in sysfs. Inspections run in separate goroutines, a few at a time. These
// goroutines post the results to the goroutine that owns the inspector.
package inspect

import (
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// enumeratePause is the time between attempts to enumerate the devices, until one of them succeeds.
const enumeratePause = time.Second

// Options configures an inspector.
type Options struct {
	Source udev.Source
	Log    *slog.Logger
	// Post queues a function for the goroutine that owns the inspector to run. Post does not block.
	Post func(f func())
	// Host returns the host for an inspection that is about to begin.
	Host func() *device.Host
	// The inspector calls Seen with the results of an inspection. Seen returns true if the subject should be inspected again,
	// even if no event arrives.
	Seen func(s *Subject) (unfinished bool)
	// The inspector calls Stuck if the inspection of a subject is stuck.
	Stuck func(s *Subject)
}

// Inspector manages the subjects and their inspections. One goroutine owns the inspector and calls all methods except
// [Inspector.Counts]. No method reads hardware or waits.
type Inspector struct {
	Options
	rules     []device.Rule
	polled    map[*device.Class]bool // classes that have a scheduled poll
	subjects  subjects               // the udev devices that represent hardware
	queue     []*Subject             // subjects waiting for an inspection, in order
	running   int                    // number of running inspections that occupy a slot
	slowCount int                    // number of running inspections that have lost their slot because they are slow

	enumerating    bool            // an enumeration is running
	enumerateAgain bool            // another enumeration is needed after the current one
	changedPaths   map[string]bool // paths that had an event since the enumeration began
	enumerated     bool            // the first enumeration has finished

	mu     sync.Mutex
	counts api.Counts
}

// New returns an inspector without subjects.
func New(o Options) *Inspector {
	return &Inspector{Options: o, polled: make(map[*device.Class]bool)}
}

// SetRules sets the rules for future inspections and queues an inspection of everything.
func (n *Inspector) SetRules(rules []device.Rule) {
	n.rules = rules
	for _, s := range n.subjects { // start polling classes that had no rule before
		n.pollSubject(s)
	}
	n.Enumerate()
}

// Enumerated reports whether an enumeration has finished.
func (n *Inspector) Enumerated() bool { return n.enumerated }

// Enumerating reports whether an enumeration is running.
func (n *Inspector) Enumerating() bool { return n.enumerating }

// Busy reports whether inspections other than slow ones are waiting or running.
func (n *Inspector) Busy() bool { return len(n.queue) > 0 || n.running > 0 }

// Open returns the number of inspections that are waiting or running.
func (n *Inspector) Open() int { return len(n.queue) + n.running + n.slowCount }

// Counts returns the numbers of events and enumerations. Counts is safe for concurrent use.
func (n *Inspector) Counts() api.Counts {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts
}

// count counts an event from udevd. count ignores events about mounts and driver messages, because they do not come from udevd.
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

// Event queues the inspections or the enumeration that an event requires.
func (n *Inspector) Event(e udev.Event) {
	n.count(e)
	switch e.Action {
	case udev.Overflow, udev.Missed:
		n.Enumerate()
	case udev.Mounts:
		n.inspectWhere(func(s *Subject) bool { return s.class() != nil && s.class().Disks })
	case udev.Logged:
		n.inspectRelated(e.Device.SysPath)
	default:
		n.hint(e)
	}
}

// hint queues an inspection of each subject that an event from udevd may affect.
func (n *Inspector) hint(e udev.Event) {
	d := e.Device
	if n.enumerating {
		n.changedPaths[d.SysPath] = true
	}
	s, left := n.subjects.get(d.SysPath), e.Action == "remove"
	switch {
	case s != nil && left:
		s.gone = true
	case s != nil:
		s.gone = false
		s.storeReport(d)
	case !left && n.mayBeSubject(d):
		n.add(d)
	}
	n.inspectRelated(d.SysPath)
	if e.Action == "move" { // udevd does not report the removal of the old path
		n.inspectRelated("/sys" + d.Properties.Value("DEVPATH_OLD"))
	}
	for _, c := range device.Classes {
		if c.WokenBy(d, n.rules...) {
			n.inspectWhere(func(s *Subject) bool { return s.class() == c })
		}
	}
}

// mayBeSubject reports whether the device d may be a subject. If this depends on the content of sysfs, mayBeSubject returns
// true, and the inspection decides.
func (n *Inspector) mayBeSubject(d udev.Device) bool {
	return device.ClassOf(d) != nil || d.DevNode != "" && n.isWanted(&device.Generic)
}

func (n *Inspector) add(d udev.Device) {
	s := &Subject{udev: &d}
	n.subjects.insert(s)
	n.Inspect(s)
	n.pollSubject(s)
}

// pollSubject schedules a poll of a subject's class, unless one is already scheduled.
func (n *Inspector) pollSubject(s *Subject) {
	if c := device.ClassOf(*s.udev); c != nil && c.Every > 0 && !n.polled[c] && n.isWanted(c) {
		n.poll(c)
	}
}

// isWanted reports whether any rule uses a given class.
func (n *Inspector) isWanted(c *device.Class) bool {
	return slices.ContainsFunc(n.rules, func(r device.Rule) bool { return r.Class == c })
}

// poll inspects the subjects of a class, and repeats this at the class's interval until no subjects are left.
func (n *Inspector) poll(c *device.Class) {
	n.polled[c] = true
	n.postAfter(c.Every, func() {
		n.polled[c] = false
		if n.inspectWhere(func(s *Subject) bool { return s.class() == c }) {
			n.poll(c)
		}
	})
}

// postAfter posts a function after a delay. The caller may stop the timer during the delay.
func (n *Inspector) postAfter(pause time.Duration, f func()) *time.Timer {
	return time.AfterFunc(pause, func() { n.Post(f) })
}

// Enumerate starts a goroutine that lists all devices. An inspection of each device is then queued. Only one enumeration runs at
// a time. If Enumerate is called during an enumeration, another one starts afterwards.
func (n *Inspector) Enumerate() {
	if n.enumerating {
		n.enumerateAgain = true
		return
	}
	n.enumerating, n.enumerateAgain = true, false
	n.changedPaths = make(map[string]bool)
	go func() {
		devices, err := n.Source.Enumerate()
		n.Post(func() { n.finishEnumeration(devices, err) })
	}()
}

// finishEnumeration processes the result of an enumeration. finishEnumeration skips each path that has had a newer event since
// the enumeration began.
func (n *Inspector) finishEnumeration(devices []udev.Device, err error) {
	n.enumerating = false
	if err != nil {
		n.Log.Error("devices not enumerated", "err", err)
		if !n.enumerated { // if a later enumeration fails, the periodic check retries it
			n.postAfter(enumeratePause, n.Enumerate)
		}
	}
	for _, d := range devices {
		s := n.subjects.get(d.SysPath)
		switch {
		case s != nil && !n.changedPaths[d.SysPath]:
			s.storeReport(d)
		case s == nil && !n.changedPaths[d.SysPath] && n.mayBeSubject(d):
			n.add(d)
		}
	}
	if n.enumerated && err == nil {
		n.mu.Lock()
		n.counts.Resyncs++
		n.mu.Unlock()
	}
	n.enumerated = n.enumerated || err == nil
	n.inspectWhere(func(*Subject) bool { return true })
	if n.enumerateAgain {
		n.Enumerate()
	}
}

// subjects is a list of subjects, sorted by sysfs path, so that all subjects below a path are next to each other.
type subjects []*Subject

// find returns the index of the subject with the given path. If there is none, find returns the index at which to insert that
// subject.
func (a subjects) find(path string) (n int, ok bool) {
	return slices.BinarySearchFunc(a, path, func(s *Subject, path string) int { return strings.Compare(s.udev.SysPath, path) })
}

// get returns the subject with the given path, or nil.
func (a subjects) get(path string) *Subject {
	if n, ok := a.find(path); ok {
		return a[n]
	}
	return nil
}

// insert adds a subject. The list must not contain a subject with the same path.
func (a *subjects) insert(s *Subject) {
	n, _ := a.find(s.udev.SysPath)
	*a = slices.Insert(*a, n, s)
}

// remove removes the subject with the given path.
func (a *subjects) remove(path string) {
	if n, ok := a.find(path); ok {
		*a = slices.Delete(*a, n, n+1)
	}
}

// related yields the subject with the given path and all subjects above and below this path.
func (a subjects) related(path string) iter.Seq[*Subject] {
	return func(yield func(*Subject) bool) {
		for end := range path {
			if path[end] == '/' {
				if s := a.get(path[:end]); s != nil && !yield(s) {
					return
				}
			}
		}
		if s := a.get(path); s != nil && !yield(s) {
			return
		}
		first, _ := a.find(path + "/")
		for _, s := range a[first:] {
			if !strings.HasPrefix(s.udev.SysPath, path+"/") || !yield(s) {
				return
			}
		}
	}
}
