// SPDX-License-Identifier: Apache-2.0

// Package inventory owns the list of devices and their state.
//
// One goroutine owns all of the inventory's data. This goroutine never reads hardware. Inspections run in other goroutines and
// post their results. Events, lost events and the periodic audit all result in the same kind of request, which is to inspect a
// path. Readers get an immutable [Snapshot] and a channel that is closed when a newer snapshot exists.
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
	// settleTimeout is how long the first snapshot waits for udev and, after a boot, for the devices from the last run. The wait
	// begins when metalplugd starts, and starts over whenever a device is inspected for the first time. Otherwise the snapshot would
	// be incomplete on a node with many or slow disks.
	settleTimeout = 10 * time.Second
	// maxSettleRounds limits the total wait to this multiple of settleTimeout. The total wait must be shorter than the unit's
	// TimeoutStartSec=, which is 90 s.
	maxSettleRounds = 6
	// allocationGrace is how long the kubelet may take after Allocate to list the device as in use. The device becomes free earlier
	// if the kubelet lists the pod and later stops listing it.
	allocationGrace = 30 * time.Second
	// fileClock is how far a file's timestamp may lag behind the clock. The kernel sets the timestamp to the time of its last timer
	// tick (current_time, fs/inode.c), and has at least 100 ticks per second.
	fileClock = 10 * time.Millisecond
	// settlePoll is how often the inventory checks whether the first snapshot is complete.
	settlePoll = 5 * time.Millisecond
	// minPublishInterval is the minimum time between two snapshots while inspections are running.
	minPublishInterval = 100 * time.Millisecond
	// burstInterval is the minimum time from a snapshot with more than burstSize changed devices to the next snapshot. Other devices
	// often change soon after such a burst, and the pause lets the next snapshot include all of their changes.
	burstInterval = 50 * time.Millisecond
	burstSize     = 16
	// workersLimit is how long a stopping inventory waits for its workers' last results. The unit's TimeoutStopSec= is 15 s.
	workersLimit = 10 * time.Second
	// saveDelay is how long metalplugd waits before it saves a change, so that the kubelet gets the change first.
	saveDelay = 100 * time.Millisecond
)

// Options configure an inventory. Machine, Audit, Settle and Grace may be zero.
type Options struct {
	Source  udev.Source
	Host    *device.Host
	Rules   []device.Rule
	Store   *statefile.Store // writes the state file
	Machine string           // the node's ID; if empty, metalplugd accepts the state file of any node
	// CheckpointDevices contains the devices that pods hold according to the kubelet's checkpoint, by resource and ID. The device
	// list includes these devices even if the state file is lost.
	CheckpointDevices map[string]map[string]kubelet.Known
	Audit             time.Duration // interval at which all devices are enumerated, in case an event was lost; 0 means never
	Settle            time.Duration // how long the first snapshot waits for udev and for more devices, by default 10 s
	Grace             time.Duration // minimum time from Allocate until a device can be free, by default 30 s
	Log               *slog.Logger
}

// Inventory is the set of devices on this node. The methods are safe for concurrent use.
type Inventory struct {
	Options
	requests
	ready     chan struct{} // closed when the first complete snapshot is published
	published atomic.Pointer[publication]
	inspector *inspect.Inspector
	cordoning sync.Mutex // locked while the cordons change
}

type publication struct {
	snapshot *Snapshot
	changed  chan struct{} // closed when a newer snapshot exists
}

// New returns an inventory that is empty until [Inventory.Run] is called.
func New(o Options) *Inventory {
	o.Settle = cmp.Or(o.Settle, settleTimeout)
	o.Grace = cmp.Or(o.Grace, allocationGrace)
	i := &Inventory{
		Options:  o,
		requests: requests{wake: make(chan struct{}, 1), done: make(chan struct{})},
		ready:    make(chan struct{}),
	}
	i.inspector = inspect.New(inspect.Options{Source: o.Source, Log: o.Log, Post: func(f func()) { i.post(func(*loop) { f() }) }})
	i.published.Store(&publication{snapshot: &Snapshot{Offers: make(map[string]*Offer)}, changed: i.ready})
	return i
}

// Ready returns a channel that is closed when the first complete snapshot is published. A snapshot is complete if all devices are
// enumerated and, after a boot, the devices from the last run are back. The wait for these devices ends when [Options].Settle has
// passed without a new device.
func (i *Inventory) Ready() <-chan struct{} { return i.ready }

// Counts returns the number of events and enumerations since the inventory was created.
func (i *Inventory) Counts() api.Counts { return i.inspector.Counts() }

// Snapshot returns the newest snapshot and a channel that is closed when a newer one exists.
func (i *Inventory) Snapshot() (*Snapshot, <-chan struct{}) {
	p := i.published.Load()
	return p.snapshot, p.changed
}

// Allocated records that a container is about to get devices, or that metalplugd has refused the kubelet's request. For each
// device, the map contains the IDs that the kubelet uses. The parameter asker identifies the running kubelet, and is empty if
// unknown. A kubelet allocates devices for one container at a time. A new request therefore shows that the kubelet's earlier
// requests have ended. Allocated does not wait.
func (i *Inventory) Allocated(as map[string][]string, asker string) {
	now := time.Now()
	i.post(func(l *loop) {
		l.closeAllocates(func(by string) bool { return by == asker })
		l.recordAllocated(as, now, &asker)
	})
}

// Starting records that a container is about to start or restart with its pod's devices. Starting does not wait.
func (i *Inventory) Starting(as map[string][]string) {
	now := time.Now()
	i.post(func(l *loop) { l.recordAllocated(as, now, nil) })
}

// Released records that the pods with these devices have ended. A caller knows this once the kubelet gives the devices to another
// pod. Released does not wait.
func (i *Inventory) Released(ids []string) {
	for _, id := range ids {
		i.postAbout(id, func(l *loop, e *entry) { l.noteTenantGone(e) })
	}
}

// Confirm records the kubelet's answer. A free device that must not be offered leaves the device list. The kubelet takes a
// device from a pod before it gives the device to another pod. Therefore, a checkpoint that is newer than a call to Allocate
// does not name an earlier pod. Such a checkpoint also shows that the kubelet has finished the call. If the answer is
// [kubelet.Noted], the plugin sends the list again. Confirm does not wait.
func (i *Inventory) Confirm(a kubelet.Answer) { i.post(func(l *loop) { l.confirm(a) }) }

// Recovered records that a device was reset or repaired. Recovered clears the faults that events and error counters have
// reported. Recovered does not wait.
func (i *Inventory) Recovered(id string) { i.postAbout(id, (*loop).clearFaults) }

// Inspect queues an inspection of devices. A caller uses Inspect if a device is not in the state that the snapshot shows.
// Inspect does not wait.
func (i *Inventory) Inspect(ids ...string) {
	for _, id := range ids {
		i.postAbout(id, func(l *loop, e *entry) { l.inspect(e) })
	}
}

// SetRules replaces the rules and queues an inspection of all devices. The parameter checkpointDevices is like
// [Options].CheckpointDevices. The returned channel is closed when a snapshot uses only the new rules. SetRules does not wait.
func (i *Inventory) SetRules(rules []device.Rule, checkpointDevices map[string]map[string]kubelet.Known) <-chan struct{} {
	done := make(chan struct{})
	i.post(func(l *loop) {
		l.rules, l.CheckpointDevices = rules, checkpointDevices
		for _, e := range l.entries {
			l.notesStale[e] = true
		}
		l.restoreCheckpoint()
		l.rulesApplied = append(l.rulesApplied, done)
		l.inspector.SetRules(rules)
	})
	return done
}

// Alive waits until the goroutine that owns the inventory has answered and then returns nil. If ctx ends first, Alive returns the
// context's error. The goroutine that reads from the source needs no check, because it never waits for another goroutine.
func (i *Inventory) Alive(ctx context.Context) error {
	return i.postAndWait(ctx, func(*loop) error { return nil })
}

// Run reads events from the source, enumerates devices and updates the inventory until ctx ends. Run returns the source's error,
// or nil after ctx has ended. Run may be called only once.
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
	// Carry out the remaining requests, including those from the workers, so that the state file contains their results.
	workers, stop := context.WithTimeout(context.WithoutCancel(ctx), workersLimit)
	for l.carryOut(); err == nil && len(l.reservations) > 0 && workers.Err() == nil; l.carryOut() {
		select {
		case <-l.wake:
		case <-workers.Done():
		}
	}
	stop()
	l.unsaved = true // devices may have changed since the last publication
	close(i.done)
	l.save()
	i.Store.Close()
	cancel()
	listener.Wait() // the caller may close the source only when no goroutine reads from it
	return err
}

func (l *loop) run(ctx context.Context, events <-chan udev.Event, listening <-chan error) error {
	l.postLater(settlePoll, (*loop).settle)
	if l.Audit > 0 {
		l.postLater(l.Audit, (*loop).audit)
	}
	for ctx.Err() == nil { // Run carries out the remaining requests after this loop
		select {
		case <-ctx.Done():
			return nil
		case err := <-listening:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("listen to %T: %w", l.Source, err)
		case e := <-events:
			l.handleEvent(e)
			for range len(events) { // a burst of events leads to one inspection of each device
				l.handleEvent(<-events)
			}
		case <-l.wake:
			l.carryOut()
		}
		l.inspector.Start()
		l.publish(time.Now())
		l.notifyRuled()
	}
	return nil
}

// audit enumerates all devices periodically, in case an event was lost.
func (l *loop) audit() {
	l.inspector.Enumerate()
	l.postLater(l.Audit, (*loop).audit)
}
