// SPDX-License-Identifier: Apache-2.0

// Package inventory is the only owner of the list of devices and of their state.
//
// One goroutine owns everything. It never reads hardware. Looks run next to it and post their results. An event, a lost
// event and the slow audit all make the same request, a look at a path. Readers take an immutable [Snapshot] with a channel
// that is closed when there is a newer one.
package inventory

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/udev"
)

const (
	// settleLimit is how long the first snapshot waits for udev and, after a boot, for the devices of the last run. The time
	// begins at the start, and again with each first look at a device that has come back. With many disks to read, or slow
	// ones, the snapshot would otherwise be incomplete.
	settleLimit = 10 * time.Second
	// settleMost is how many times settleLimit it waits at most. TimeoutStartSec= of the unit is 90 s.
	settleMost = 6
	// allocationGrace is how long the kubelet may take after Allocate to have the device in its books. Once it has listed
	// the pod, the device is free when it is in them no more.
	allocationGrace = 30 * time.Second
	// fileClock is how much the time of a file may be behind. The kernel takes it from its last tick (current_time,
	// fs/inode.c), at 100 Hz or more.
	fileClock = 10 * time.Millisecond
	// settlePoll is how often that is looked at meanwhile.
	settlePoll = 5 * time.Millisecond
	// publishGap is the least time between two snapshots while looks are still running.
	publishGap = 100 * time.Millisecond
	// crowdGap is the least time to the next one after a snapshot in which more than crowd devices have changed. More changes
	// are likely to follow so many.
	crowdGap = 50 * time.Millisecond
	crowd    = 16
	// savePause is how long after a change the identities are saved. The kubelet gets the change first.
	savePause = 100 * time.Millisecond
)

// Options configure an inventory. Audit, Store and Log may be zero.
type Options struct {
	Source  udev.Source
	Host    *device.Host
	Rules   []device.Rule
	Store   *statefile.Store // keeps the state, or nil
	Machine string           // the ID of the node. If it is empty, a state file of any node counts.
	// AfterBoot reports that the node was booted since the last run. Devices of that run may still be on their way, and the
	// first snapshot waits for them.
	AfterBoot bool
	// Remembered are devices that pods hold by the kubelet's checkpoint, by resource and ID. Devices that a lost Store does not
	// have are in the device list too.
	Remembered map[string]map[string]kubelet.Known
	Audit      time.Duration // how often everything is enumerated again in case an event was lost, or 0 for never
	Settle     time.Duration // how long the first snapshot waits for udev and devices while none comes, by default 10 s
	Grace      time.Duration // how long a device cannot be free after a container was given it, by default 30 s
	Log        *slog.Logger
}

// Inventory is the set of devices of this machine. Its methods are safe for concurrent use.
type Inventory struct {
	Options
	requests
	ready     chan struct{} // closed with the first complete snapshot
	published atomic.Pointer[publication]
	inspector *inspect.Inspector
	cordoning sync.Mutex // held while the cordons change
}

type publication struct {
	snapshot *Snapshot
	changed  chan struct{} // closed when there is a newer one
}

// New returns an inventory that knows nothing until [Inventory.Run].
func New(o Options) *Inventory {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Settle = cmp.Or(o.Settle, settleLimit)
	o.Grace = cmp.Or(o.Grace, allocationGrace)
	i := &Inventory{
		Options:  o,
		requests: requests{wake: make(chan struct{}, 1), done: make(chan struct{})},
		ready:    make(chan struct{}),
	}
	i.inspector = inspect.New(inspect.Options{
		Source: o.Source, Log: o.Log, Post: func(f func()) { i.post(func(*loop) { f() }) },
	})
	i.published.Store(&publication{snapshot: &Snapshot{}, changed: make(chan struct{})})
	return i
}

// Ready is closed when the first complete snapshot is there. Then everything is enumerated and, after a boot, the devices of the
// last run are back. Otherwise [Options].Settle has passed without a look at another device.
func (i *Inventory) Ready() <-chan struct{} { return i.ready }

// Counts returns the numbers of events and enumerations since the inventory was made.
func (i *Inventory) Counts() api.Counts { return i.inspector.Counts() }

// Snapshot returns the newest snapshot and a channel that is closed when there is a newer one.
func (i *Inventory) Snapshot() (*Snapshot, <-chan struct{}) {
	p := i.published.Load()
	return p.snapshot, p.changed
}

// Allocated notes that a container is about to be given devices, or that the kubelet asked for some and was refused. as has
// the IDs by which the kubelet knows each device. asker tells the kubelet that asked from those before and after it, and is
// empty if unknown. A kubelet allocates for one container at a time. It has booked the devices that it was given before, or
// never will. Allocated does not wait.
func (i *Inventory) Allocated(as map[string][]string, asker string) {
	now := time.Now()
	i.post(func(l *loop) {
		l.closeAllocates(func(by string) bool { return by == asker })
		l.allocated(as, now, false)
		for id := range as {
			if e := l.entries[id]; e != nil {
				e.owed, e.asker = true, asker
				l.owing[e] = true
			}
		}
	})
}

// Starting notes that a container is about to be started, perhaps again, with devices that its pod was given. It does not
// wait.
func (i *Inventory) Starting(as map[string][]string) {
	now := time.Now()
	i.post(func(l *loop) { l.allocated(as, now, true) })
}

// Released notes that the pods which held these devices are gone, since the kubelet was about to give the devices to
// another. It does not wait.
func (i *Inventory) Released(ids []string) {
	for _, id := range ids {
		i.about(id, func(l *loop, e *entry) { l.vacate(e) })
	}
}

// Confirm notes the kubelet's answer. A free device that must not be offered leaves the device list. A noted one makes the
// plugin send the list again. The kubelet takes a device from a pod before it gives it to another. So a checkpoint that is
// newer than the Allocate does not name a pod of before, and the kubelet is done with the Allocate. Confirm does not wait.
func (i *Inventory) Confirm(a kubelet.Answer) { i.post(func(l *loop) { l.confirm(a) }) }

// Recovered notes that a device was reset or repaired. It clears the faults that events and error counters have reported. It
// does not wait.
func (i *Inventory) Recovered(id string) { i.about(id, (*loop).recovered) }

// LookAgain queues a look at these devices, which differ from the snapshot. It does not wait.
func (i *Inventory) LookAgain(ids ...string) {
	for _, id := range ids {
		i.about(id, func(l *loop, e *entry) { l.look(e) })
	}
}

// SetRules replaces the rules and queues a look at everything. remembered is as in [Options]. The channel is closed with the
// first snapshot that the old rules have no part in. SetRules does not wait.
func (i *Inventory) SetRules(rules []device.Rule, remembered map[string]map[string]kubelet.Known) <-chan struct{} {
	done := make(chan struct{})
	i.post(func(l *loop) {
		l.rules, l.Remembered = rules, remembered
		for _, e := range l.entries {
			e.proof = proof{} // some rules want none
			l.untold[e] = true
		}
		l.restoreRemembered()
		l.ruled = append(l.ruled, done)
		l.inspector.SetRules(rules)
	})
	return done
}

// Alive returns once the goroutine that owns the inventory has answered, or with the error of ctx. The goroutine that listens to
// the source waits for that one and for nothing else.
func (i *Inventory) Alive(ctx context.Context) error { return i.ask(ctx, func(*loop) {}) }

// Run listens to the source, enumerates it and keeps the inventory until ctx ends. The error is that of the source, or
// nil after ctx ended. It may be called once.
func (i *Inventory) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan udev.Event, 256)
	listening := make(chan error, 1)
	var listener sync.WaitGroup
	listener.Go(func() { listening <- i.Source.Listen(ctx, events) })

	l := newLoop(i)
	l.restore()
	l.inspector.SetRules(l.rules)
	err := l.run(ctx, events, listening)
	l.carryOut() // what is still waiting is kept
	l.unsaved = l.unsaved || len(l.dirty) > 0
	close(i.done)
	l.save()
	if i.Store != nil {
		i.Store.Close()
	}
	cancel()
	listener.Wait() // only then the source may be closed
	return err
}

func (l *loop) run(ctx context.Context, events <-chan udev.Event, listening <-chan error) error {
	l.later(settlePoll, (*loop).settle)
	if l.Audit > 0 {
		l.later(l.Audit, (*loop).audit)
	}
	for ctx.Err() == nil { // what else has come by then is for the end
		select {
		case <-ctx.Done():
			return nil
		case err := <-listening:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("listen to %T: %w", l.Source, err)
		case e := <-events:
			l.event(e)
			for range len(events) { // a burst leads to one look at each device
				l.event(<-events)
			}
		case <-l.wake:
			l.carryOut()
		}
		l.inspector.Start()
		l.publish(time.Now())
		l.tellRuled()
	}
	return nil
}

// audit enumerates everything again and again, in case an event was lost.
func (l *loop) audit() {
	l.inspector.Enumerate()
	l.later(l.Audit, (*loop).audit)
}
