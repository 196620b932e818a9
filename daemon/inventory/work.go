// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/daemon/lease"
)

// returnLimit is how long a device may be absent after a successful reset. The helper has already found the device again,
// but udev must still report it.
const returnLimit = 10 * time.Second

// phase says whether metalplug's own work on a device is in progress, has just ended, or does not affect the device.
type phase uint8

const (
	noWork    phase = iota
	working         // work on this device, or on another device that affects this one, is in progress
	afterWork       // the work has ended, but may still cause hardware changes
)

// window is the period of metalplug's own work on a device. During this period, metalplug assumes that its own work causes all
// hardware changes.
type window struct {
	phase         phase
	order         lease.Order      // the operator's order that the work in progress carries out, or empty
	absentUntil   time.Time        // end of the period in which the device may be absent after metalplug has reset it
	invalidated   *inspect.Subject // the subject that needs a new inspection
	validFrom     int              // number of inspections that must return before the window ends
	delay         string           // why the pending work is delayed, for example because a process has the device open
	diskBefore    evidence.Disk    // the disk at the beginning of the work
	provenDiskseq string           // diskseq after the work, if the helper has proven that the medium is the same
	givenSince    bool             // a pod or a claim has received the device since the work began
	recheck       bool             // the disk was read in full, and must be probed once more before it is offered
}

// isOther reports whether another disk may have replaced the disk that the work began on. Since 5.15, Linux numbers the
// appearances of disks. On an older kernel, a new inode of the disk's sysfs directory shows a new appearance.
func (w *window) isOther(now evidence.Disk) bool {
	if now.Appearance == "" && w.diskBefore.Appearance == "" {
		return now != w.diskBefore
	}
	return now.Medium != w.diskBefore.Medium || now.Appearance != w.diskBefore.Appearance && now.Appearance != w.provenDiskseq
}

// isBusy reports whether metalplug is working on the device, or on another device that affects it.
func (e *entry) isBusy() bool { return e.work.phase == working }

// mayChangeContent reports whether metalplug's own work may change the disk's content. Work on another device that affects this
// one does not change the content. The operator's order to reset a disk does not change it either.
func (e *entry) mayChangeContent() bool {
	return e.isBusy() && e.lease.Working() && e.work.order != lease.Reset
}

// invalidate queues an inspection. Until this inspection has returned, the last result is considered out of date.
func (d *devices) invalidate(e *entry) {
	if e.owner == nil || e.owner.Removed() {
		return
	}
	w := &e.work
	w.invalidated, w.validFrom, e.lastProbe = e.owner, e.owner.Next(), lastProbe{}
	d.inspect(e)
}

// isOutdated reports whether the last inspection began before the last call to [devices.invalidate].
func (e *entry) isOutdated() bool {
	w := &e.work
	return w.invalidated != nil && w.invalidated == e.owner && !e.owner.Removed() && e.owner.Inspections() < w.validFrom
}

// isCurrent reports whether the last inspection began after metalplug's last work on the device and after the last call to
// [devices.invalidate]. Any other inspection proves nothing about a disk's content.
func (e *entry) isCurrent() bool { return !e.isBusy() && !e.isOutdated() }

// isFrozen reports whether the status hides hardware changes because metalplug's own work causes them. If this work has failed or
// an inspection is stuck, the status hides nothing.
func (e *entry) isFrozen(now time.Time) bool {
	return e.lease.Failure == "" && !e.stuck && e.mayChangeHardware(now)
}

// mayChangeHardware reports whether metalplug's own work may be the cause of a hardware change. After the work, this applies
// until an inspection that began later has found the device. If the device does not come back, this ends after a while.
func (e *entry) mayChangeHardware(now time.Time) bool {
	w := &e.work
	return w.phase == working || w.phase == afterWork && (e.isOutdated() || now.Before(w.absentUntil))
}

// Outcome is the result of work on a device. The zero value means that the work did nothing.
type Outcome struct {
	// Event is [lease.Start], [lease.Cleared], [lease.Mended] or [lease.Fail]. Event is empty if the work was on another device, or
	// if it neither succeeded nor failed, which counts as [lease.Refused].
	Event   lease.Name
	Tenants []string    // UIDs of the pods, if a container starts
	Err     error       // why the work failed, or nil
	Order   lease.Order // the operator's order, if the ordered work failed; otherwise empty
	Foreign bool        // the disk's content is not from a tenant, and the work did not change it
	// Touched means that an erasure failed, but may have changed the disk's content. Fingerprint is the disk's fingerprint after
	// this failure, as in [evidence.Evidence], or empty if unknown.
	Touched     bool
	Fingerprint string
	Written     *uint64 // the value of [device.Sighting].Written after such a failure, or nil if unknown
}

// reservation is a worker's request for exclusive use of devices.
type reservation struct {
	ids    []string
	active bool          // the worker has all devices of the reservation
	ready  chan *Current // once the worker has all devices, receives the state of the first one; nil if that device is unknown
}

// Take waits until no other worker has any of these devices. From then on, the caller has the devices until it calls
// [Inventory.End]. If several workers wait for a device, they get it in the order of their calls. Take returns the newest state
// of the first device. The error is [ErrUnknownDevice] or the context's error. Any other error means that the inventory has
// stopped.
func (i *Inventory) Take(ctx context.Context, ids []string) (_ *Current, err error) {
	c := &reservation{ids: ids, ready: make(chan *Current, 1)}
	i.post(func(l *loop) {
		l.reservations = append(l.reservations, c)
		l.activateReservations()
	})
	select {
	case s := <-c.ready:
		if s != nil {
			return s, nil
		}
		err = fmt.Errorf("%s: %w", ids[0], ErrUnknownDevice)
	case <-ctx.Done():
		err = fmt.Errorf("wait for a worker: %w", ctx.Err())
	case <-i.done:
		err = errStopped
	}
	i.post(func(l *loop) { l.dropReservations(func(other *reservation) bool { return other == c }) })
	return nil, err
}

// activateReservations assigns devices to each worker whose reservation does not overlap with an earlier one.
func (l *loop) activateReservations() {
	claimed := make(map[string]bool)
	for _, c := range l.reservations {
		free := !slices.ContainsFunc(c.ids, func(id string) bool { return claimed[id] })
		for _, id := range c.ids {
			claimed[id] = true
		}
		if free && !c.active {
			c.active = true
			c.ready <- l.current(c.ids[0])
		}
	}
}

// dropReservations removes reservations and assigns their devices to the next workers.
func (l *loop) dropReservations(which func(*reservation) bool) {
	l.reservations = slices.DeleteFunc(l.reservations, which)
	l.activateReservations()
}

// Begin records that work on a device is beginning. The parameter event is [lease.Prepare] or [lease.Clear]. The event is empty
// if the work is on another device and affects this device. The parameter order is the operator's order, or empty. Begin passes
// the newest state of the device to the function check, and begins nothing if check returns an error. The function runs on the
// inventory's goroutine, so it must not block or call the inventory. Until [Inventory.End] is called, inspections do not open the
// device. Until one more inspection has returned, the kubelet sees no hardware changes. Begin returns the newest state of the device.
// Begin waits for the goroutine that owns the inventory. The error is [ErrUnknownDevice], the context's error, the error from check,
// or a [lease.ErrEvent] if the state does not allow the work.
func (i *Inventory) Begin(ctx context.Context, id string, event lease.Name, order lease.Order, check func(now *Current) error) (s *Current, err error) {
	err = i.postAndWait(ctx, func(l *loop) error {
		e := l.entries[id]
		if e == nil || e.status == nil {
			return fmt.Errorf("%s: %w", id, ErrUnknownDevice)
		}
		s = l.current(id)
		err := check(s)
		if err == nil && event != "" {
			err = l.apply(e, lease.Event{Name: event})
		}
		if err == nil {
			e.work.delay = "" // the reason during the work must not contain an earlier delay
			l.beginWork(e, order)
		}
		return err
	})
	return s, err
}

func (l *loop) beginWork(e *entry, order lease.Order) {
	w := &e.work
	w.phase, w.order, w.diskBefore, w.provenDiskseq, w.givenSince = working, order, e.Disk, "", false
	// If the work makes the disk reappear, the kernel restarts its count of writes at 0. The evidence must then end, even if
	// metalplugd crashes during the work.
	if v := l.evidence.Get(e.Disk); v != nil && v.Scrub == "" {
		v.Of = cmp.Or(v.Of, l.evidence.Presence(e.Disk))
	}
	l.saveSoon(e) // the state file must not contain some facts during the work (see [loop.record] and [evidence.Book.Saved])
}

// Prepared records a partial result while the work continues. To wait until the result is saved, call [Inventory.WaitSaved].
// Prepared does not wait.
func (i *Inventory) Prepared(id string, p device.Report) {
	i.postAbout(id, func(l *loop, e *entry) {
		e.work.provenDiskseq = p.Appearance
		if p.Erased {
			l.recordErased(e, p)
		}
	})
}

// End releases the devices that the caller got from [Inventory.Take]. End records the outcome of the work that [Inventory.Begin]
// began on the first device. End does not wait.
func (i *Inventory) End(ids []string, o Outcome) {
	i.post(func(l *loop) {
		for n, id := range ids {
			if e := l.entries[id]; e != nil && e.isBusy() {
				if n > 0 {
					o = Outcome{}
				}
				l.finishWork(e, o)
			}
		}
		l.dropReservations(func(c *reservation) bool { return c.active && c.ids[0] == ids[0] })
	})
}

func (l *loop) finishWork(e *entry, o Outcome) {
	w := &e.work
	other := w.isOther(e.Disk) // whether another disk may have replaced the one that was worked on
	w.phase, w.order = afterWork, lease.NoOrder
	if o.Touched {
		e.Fingerprint, e.seenFingerprint, e.Wrote, e.Unfinished = "", "", evidence.Writes{}, true // the helper may not have ended
		if o.Written != nil {
			e.Wrote = l.writes(e, *o.Written)
		}
		if v := l.evidence.Get(e.Disk); v != nil {
			v.Fingerprint = o.Fingerprint
		}
	}
	if o.Foreign {
		l.noteForeignContent(e, "another process may have written to the disk")
	}
	l.applyOutcome(e, o, other)
	if other {
		l.noteReplacedMedium(e)
	}
	l.saveLater()
	if o.Err == nil && (e.owner == nil || e.owner.Removed() || e.sighting == nil) {
		w.absentUntil = time.Now().Add(returnLimit)
		l.postLater(returnLimit, func(l *loop) { l.judgeAgain(e) })
	}
	l.invalidate(e)
	l.queueVerdict(e)
}

// applyOutcome changes the lease according to the outcome of the work. If the flag other is set, another disk may have replaced
// the disk that the work began on.
func (l *loop) applyOutcome(e *entry, o Outcome, other bool) {
	event := lease.Event{Name: cmp.Or(o.Event, lease.Refused), Tenants: o.Tenants, Medium: e.work.diskBefore.Medium, Given: e.work.givenSince, Order: o.Order}
	switch o.Event {
	case lease.Start:
		// If the disk was not erased, its content still belongs to the same tenant.
		again := e.lease.Used && e.lease.Held() && e.lease.Hold != lease.Due
		event.Residue = !other && (e.lease.Residue && (again || event.Given) || !again && l.ownsContent(e))
		e.Claims, e.Wrote = e.Claims.Started(o.Tenants), evidence.Writes{}
		l.recordStarted(e, event)
		l.closeAllocate(e)
		return
	case lease.Fail:
		if event.Reason = o.Err.Error(); o.Order == lease.Erase && l.cordons[e.device.ID] != nil {
			event.Order = lease.NoOrder // not repeated, because the operator may use a cordoned disk, even if the cordon is not saved yet
		}
	}
	if e.lease.Working() {
		_ = l.apply(e, event)
	}
}

// Settled waits until a snapshot shows the result of the last work on a device. Settled returns earlier if ctx ends or if the
// inspection after the work is stuck.
func Settled(ctx context.Context, i *Inventory, id string) {
	ctx, cancel := context.WithTimeout(ctx, inspect.StuckTimeout)
	defer cancel()
	_ = i.Await(ctx, func(*Snapshot) (settled bool) {
		_ = i.postAndWait(ctx, func(l *loop) error {
			e := l.entries[id]
			settled = e == nil || !l.dirty[e] && !e.isFrozen(time.Now())
			return nil
		})
		return settled
	})
}

// Delayed records why pending work is delayed. An empty string means that the work is not delayed. Delayed does not wait.
func (i *Inventory) Delayed(id, why string) {
	i.postAbout(id, func(l *loop, e *entry) {
		if e.work.delay != why { // a new snapshot without a change would make the worker try again at once
			e.work.delay = why
			l.queueVerdict(e)
		}
	})
}

// Initialised records that the vendor unit has initialised a device, or why the unit failed. The record is valid until the
// hardware disappears or the node reboots. Initialised does not wait.
func (i *Inventory) Initialised(id, init string, err error) {
	i.postAbout(id, func(l *loop, e *entry) {
		if e.Initialised, e.initFailure = init, ""; err != nil {
			e.Initialised, e.initFailure = "", err.Error()
		}
		e.settling = time.Now().Add(returnLimit)
		l.saveSoon(e)
	})
}
