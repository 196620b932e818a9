// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/daemon/lease"
)

// returnLimit is how long after a successful reset a device may be missing. The helper has seen it come back, and udev has
// yet to report it.
const returnLimit = 10 * time.Second

// phase is how far the daemon's own work on a device is.
type phase uint8

const (
	noWork    phase = iota
	working         // also on another device, if that hits this one
	afterWork       // it has ended, and may still cause changes of the hardware
)

// window is the daemon's own work on a device. While it is open, the work causes the changes of the hardware.
type window struct {
	phase   phase
	why     string           // the device is Unhealthy in the meantime, with this reason
	until   time.Time        // until then it may be missing after a reset by the daemon
	relook  *inspect.Subject // of which a new look is wanted
	after   int              // how many looks have come back by then
	delay   string           // why the work that it waits for is not done, such as a process that has it open
	from    evidence.Disk    // the disk when the work began
	vouched string           // the one that the helper has proven to be the same medium after it
	given   bool             // the kubelet gave it to a pod since the work began
	recheck bool             // the disk was just read in full, and is probed once more before it is offered
}

// other reports whether the disk that is seen now may be another than the one that the work began on. Linux counts the
// appearances of disks since 5.15. On an older kernel the directory in sysfs shows that one has appeared again.
func (w *window) other(now evidence.Disk) bool {
	if now.Appearance == "" && w.from.Appearance == "" {
		return now != w.from
	}
	return now.Medium != w.from.Medium || now.Appearance != w.from.Appearance && now.Appearance != w.vouched
}

// atWork returns the window of a device, to write to.
func (e *entry) atWork() *window {
	if e.window == nil {
		e.window = &window{}
	}
	return e.window
}

// work returns the window of a device, to read.
func (e *entry) work() window {
	if e.window == nil {
		return window{}
	}
	return *e.window
}

// busy reports whether the daemon works on a device, or on another that hits it.
func (e *entry) busy() bool { return e.window != nil && e.window.phase == working }

// delayed notes why the work that a device waits for is not done, or empty.
func (e *entry) delayed(why string) {
	if e.work().delay != why {
		e.atWork().delay = why
	}
}

// lookAnew queues a look. Until a look is back that begins from now on, the last one counts as out of date.
func (d *devices) lookAnew(e *entry) {
	if e.owner == nil || e.owner.Removed() {
		return
	}
	w := e.atWork()
	w.relook, w.after, e.proof = e.owner, e.owner.Next(), proof{}
	d.look(e)
}

// outdated reports whether the last look was before [devices.lookAnew].
func (e *entry) outdated() bool {
	w := e.window
	return w != nil && w.relook != nil && w.relook == e.owner && !e.owner.Removed() && e.owner.Looks() < w.after
}

// frozen reports whether the daemon's own work causes the changes of the hardware. A failure is shown all the same.
func (e *entry) frozen(now time.Time) bool {
	w := e.window
	switch {
	case w == nil, e.lease.Failure != "", e.stuck:
		return false
	case w.phase == working:
		return true
	}
	return w.phase == afterWork && (e.outdated() || e.sighting == nil && now.Before(w.until))
}

// closeWindow ends the window once a look has come back that began after the work.
func (e *entry) closeWindow() {
	if w := e.window; w != nil && w.phase == afterWork && !e.outdated() {
		w.phase = noWork
	}
}

// Failure is why work on a device failed.
type Failure struct {
	Err   error
	Order lease.Order // of an operator, or empty
	// Touched reports that the content of the disk may have changed, since an erasure failed.
	Touched bool
	// Fingerprint is that of a touched disk after the failure, as in [Evidence], or empty if unknown.
	Fingerprint string
}

// Outcome is the result of work on a device. With the zero value nothing was done to it.
type Outcome struct {
	// Event is [lease.Start], [lease.Cleared], [lease.Mended], [lease.Fail] or [lease.Refused]. It is empty for work on another
	// device, and where nothing is to be noted.
	Event lease.Name
	Failure
	Foreign bool     // the content of the disk is not a tenant's, and nothing was done to it
	Tenants []string // of a start, the UIDs of the pods that it is for
}

// claim is the claim of a worker on devices.
type claim struct {
	ids   []string
	has   bool          // the worker has the devices
	given chan struct{} // closed then
}

// Take waits until no other worker has any of these devices, and gives them all to the caller until [Inventory.End]. Of two
// workers that wait for a device, the first gets it. Take returns the first device as it stands. The error is
// [ErrUnknownDevice], that of ctx, or that of an inventory that has stopped.
func (i *Inventory) Take(ctx context.Context, ids []string) (s *Status, err error) {
	c := &claim{ids: ids, given: make(chan struct{})}
	if err := i.ask(ctx, func(l *loop) {
		l.claims = append(l.claims, c)
		l.give()
	}); err != nil {
		return nil, err
	}
	select {
	case <-c.given:
		err = i.ask(ctx, func(l *loop) { s = l.current(ids[0]) })
	case <-ctx.Done():
		err = fmt.Errorf("wait for a worker: %w", ctx.Err())
	case <-i.done:
		err = errStopped
	}
	if err == nil && s == nil {
		err = fmt.Errorf("%s: %w", ids[0], ErrUnknownDevice)
	}
	if err != nil {
		i.post(func(l *loop) { l.drop(func(other *claim) bool { return other == c }) })
		return nil, err
	}
	return s, nil
}

// give gives devices to each worker whose claim overlaps with none before it.
func (d *devices) give() {
	claimed := make(map[string]bool)
	for _, c := range d.claims {
		free := !slices.ContainsFunc(c.ids, func(id string) bool { return claimed[id] })
		for _, id := range c.ids {
			claimed[id] = true
		}
		if free && !c.has {
			c.has = true
			close(c.given)
		}
	}
}

// drop ends claims.
func (d *devices) drop(which func(*claim) bool) {
	d.claims = slices.DeleteFunc(d.claims, which)
	d.give()
}

// Begin notes that work on a device begins, which is [lease.Prepare], [lease.Clear], or without a name work on another device
// that hits this one. Until the call of [Inventory.End] and a look after that, the kubelet sees no change of the hardware.
// With a reason, which people are shown, the device is Unhealthy until then. Looks do not open it in the meantime. Begin
// returns the device as it stands. It waits for the goroutine that owns the inventory. The error is [ErrUnknownDevice], a
// [*lease.ErrEvent] if the state does not allow the work, or that of ctx.
func (i *Inventory) Begin(ctx context.Context, id string, event lease.Name, reason string) (s *Status, err error) {
	if askErr := i.ask(ctx, func(l *loop) {
		e := l.entries[id]
		if e == nil || e.status == nil {
			err = fmt.Errorf("%s: %w", id, ErrUnknownDevice)
			return
		}
		s = l.current(id)
		if event != "" {
			err = l.apply(e, lease.Event{Name: event})
		}
		if err == nil {
			l.beginWork(e, reason)
		}
	}); askErr != nil {
		return nil, askErr
	}
	return s, err
}

func (l *loop) beginWork(e *entry, reason string) {
	w := e.atWork()
	w.phase, w.why, w.from, w.vouched, w.given = working, reason, e.Disk, "", false
	// If we end before we have noted what has come of it, it has gone for good.
	if v := l.evidence.Get(e.Disk); e.left != (left{}) || e.Wrote != (wrote{}) || v != nil && v.Fingerprint != "" {
		l.keepSoon(e)
	}
	l.changed(e)
}

// Prepared notes the outcome of work on a device while more work goes on. [Inventory.Kept] waits until it is saved. Prepared
// does not wait.
func (i *Inventory) Prepared(id string, p device.Prepared) {
	i.about(id, func(l *loop, e *entry) {
		e.atWork().vouched = p.Appearance
		if p.Erased {
			l.erased(e, p)
		}
	})
}

// End gives devices of [Inventory.Take] back, and notes the outcome of the work on the first that [Inventory.Begin] has
// announced. It does not wait.
func (i *Inventory) End(ids []string, o Outcome) {
	i.post(func(l *loop) {
		for n, id := range ids {
			if e := l.entries[id]; e != nil && e.busy() {
				if n > 0 {
					o = Outcome{}
				}
				l.worked(e, o)
			}
		}
		l.drop(func(c *claim) bool { return c.has && c.ids[0] == ids[0] })
	})
}

func (l *loop) worked(e *entry, o Outcome) {
	w := e.atWork()
	other := w.other(e.Disk) // then the work was on another disk
	w.phase, w.why = afterWork, ""
	v := l.evidence.Get(e.Disk)
	did := o.Event != "" && o.Event != lease.Refused
	if did || o.Foreign { // the work wrote to the disk
		if e.Wrote = (wrote{}); v != nil {
			v.In = ""
		}
	}
	if o.Touched {
		if e.left, e.seen = (left{}), (left{}); v != nil {
			v.Fingerprint = o.Fingerprint
		}
	}
	if o.Foreign {
		l.foreign(e, "others have written to the disk")
	}
	l.outcome(e, o, other)
	if other {
		l.replaced(e)
	}
	l.saveLater()
	if o.Err == nil && o.Event != lease.Refused && (e.owner == nil || e.owner.Removed() || e.sighting == nil) {
		w.until = time.Now().Add(returnLimit)
		l.later(returnLimit, func(l *loop) { l.judgeAgain(e) })
	}
	l.lookAnew(e)
	l.changed(e)
}

// outcome changes the lease by the outcome of work. other reports that the work was on another disk than the one that is
// there now.
func (l *loop) outcome(e *entry, o Outcome, other bool) {
	event := lease.Event{Name: o.Event, Tenants: o.Tenants, Medium: e.work().from.Medium, Given: e.work().given, Order: o.Order}
	switch o.Event {
	case lease.Start:
		again := e.lease.Used && e.lease.Held() && e.lease.Hold != lease.Due // nothing was erased, and the content stays its tenant's
		event.Residue = !other && (again && e.lease.Residue || !again && l.owns(e))
		l.started(e, event)
		l.closeAllocate(e)
		return
	case lease.Cleared:
		e.delayed("")
	case lease.Fail:
		event.Reason = o.Err.Error()
	case "":
		event.Name = lease.Refused
	}
	if e.lease.Working() {
		_ = l.apply(e, event)
	}
}

// Delayed notes why the work that a device waits for is not done, or with an empty text that it is. It does not wait.
func (i *Inventory) Delayed(id, why string) {
	i.about(id, func(l *loop, e *entry) {
		if e.work().delay != why {
			e.delayed(why)
			l.changed(e)
		}
	})
}

// Initialised notes that the unit of its rule has run for a device before it is offered, or why it failed. The note
// applies as long as the hardware is there, in this boot. Initialised does not wait.
func (i *Inventory) Initialised(id, init string, err error) {
	i.about(id, func(l *loop, e *entry) {
		if e.Initialised, e.uninit = init, ""; err != nil {
			e.Initialised, e.uninit = "", err.Error()
		}
		e.settling = time.Now().Add(returnLimit)
		l.keepSoon(e)
	})
}
