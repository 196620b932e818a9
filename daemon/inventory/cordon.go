// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnknownDevice: the inventory has no device of that ID.
var ErrUnknownDevice = errors.New("no such device")

// errStopped: the inventory runs no more.
var errStopped = errors.New("the inventory has stopped")

// cordonShown is how long Cordon and Uncordon wait for the snapshot that shows it: while looks are under way there is
// one each publishGap.
const cordonShown = 10 * publishGap

// mayHaveBeen is the reason where it cannot be read which devices were cordoned.
const mayHaveBeen = "it may have been before " + cordonFile + " was damaged: uncordon it if not"

// Cordon is why a device is kept from new pods, by whom and since when.
type Cordon struct {
	Reason string    `json:"reason"`
	UID    uint32    `json:"uid"`   // of who asked for it, as the kernel says
	User   string    `json:"user"`  // the name of that; empty: it has none
	Login  string    `json:"login"` // who had logged in there, as the client says, for sudo makes root of everybody; empty: not known
	Since  time.Time `json:"since"` // zero: not known, nor who it was
}

// Cordon keeps a device from new pods, for a reason that people are told, until [Inventory.Uncordon]. It is listed
// Unhealthy; a pod that holds it keeps it. It holds across restarts and reboots: c is on disk when Cordon returns, else
// that is an error and nothing has changed. The error may also be [ErrUnknownDevice] or that of ctx.
func (i *Inventory) Cordon(ctx context.Context, id string, c Cordon) error {
	return i.changeCordon(ctx, id, func(cordons map[string]Cordon) bool { cordons[id] = c; return true })
}

// Uncordon ends what [Inventory.Cordon] began, also for a device that is not there any more, and tells whether there was
// anything to end. The errors are the same.
func (i *Inventory) Uncordon(ctx context.Context, id string) (was bool, err error) {
	err = i.changeCordon(ctx, id, func(cordons map[string]Cordon) bool {
		_, was = cordons[id]
		delete(cordons, id)
		return was
	})
	return was, err
}

// changeCordon has a change of the cordons written, if it says that it is one, then makes it hold and waits a little for it
// to be seen. The order matters: a cordon that holds and is not on disk would be gone after a power failure, and nobody would
// know. The loop writes no file; the caller does, which may wait for the disk. What is written holds, though the caller may not
// wait for it any more; what may have been written by an attempt that failed is written over.
func (i *Inventory) changeCordon(ctx context.Context, id string, change func(map[string]Cordon) bool) error {
	select {
	case <-i.ready: // else what is presumed of the devices that are found at the start would not be among them
	case <-i.done:
		return errStopped
	case <-ctx.Done():
		return fmt.Errorf("wait for the inventory: %w", ctx.Err())
	}
	i.cordoning.Lock() // nobody changes them between the answer of the loop and the new value
	defer i.cordoning.Unlock()
	var cordons map[string]Cordon
	var known bool
	if err := i.ask(ctx, func(l *loop) {
		cordons = maps.Clone(l.cordons)
		_, known = cordons[id]
		known = known || l.entries[id] != nil
	}); err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("%s: %w", id, ErrUnknownDevice)
	}
	if cordons == nil {
		cordons = make(map[string]Cordon)
	}
	if !change(cordons) {
		return nil
	}
	if i.Store != nil {
		if err := i.Store.keepCordons(cordons); err != nil {
			i.Store.doubtCordons(err)
			return fmt.Errorf("keep cordons: %w", err)
		}
	}
	// It is on disk: nobody who is impatient takes that back, nor does the end.
	if i.ask(context.WithoutCancel(ctx), func(l *loop) { l.setCordons(id, cordons) }) != nil {
		return nil
	}
	var wanted *Cordon
	if c, cordoned := cordons[id]; cordoned {
		wanted = &c
	}
	i.awaitCordon(ctx, id, wanted)
	return nil
}

// awaitCordon waits a little until a snapshot shows that cordon of a device; nil: none.
func (i *Inventory) awaitCordon(ctx context.Context, id string, wanted *Cordon) {
	ctx, cancel := context.WithTimeout(ctx, i.Shown)
	defer cancel()
	_ = i.await(ctx, id, func(s *Status) bool { return s == nil || s.Cordon.Same(wanted) }) // it holds all the same
}

// ask has the loop carry out a request and returns when it has.
func (i *Inventory) ask(ctx context.Context, r request) error {
	answered := make(chan struct{})
	select {
	case i.requests <- func(l *loop) { r(l); close(answered) }:
	case <-i.done:
		return errStopped
	case <-ctx.Done():
		return fmt.Errorf("ask the inventory: %w", ctx.Err())
	}
	select {
	case <-answered:
		return nil
	case <-i.done:
		select {
		case <-answered: // by the last that the loop has done
			return nil
		default:
			return errStopped
		}
	case <-ctx.Done():
		return fmt.Errorf("wait for the inventory: %w", ctx.Err())
	}
}

// setCordons makes other cordons hold, of which that of one device has changed.
func (l *loop) setCordons(id string, cordons map[string]Cordon) {
	l.cordons = cordons
	l.saveSoon() // the identities say which there are
	if e := l.entries[id]; e != nil {
		l.changed(e)
	}
}

// cordoned makes the status that of a cordoned device, if it is one.
func (l *loop) cordoned(s *Status) {
	c, ok := l.cordons[s.Device.ID]
	if !ok {
		return
	}
	reason := c.Reason
	s.Cordon, s.Healthy, s.Parked = &c, false, s.Healthy
	if s.Reason != "" {
		reason += "; " + s.Reason
	}
	s.Reason = "cordoned: " + reason
}

// restoreCordons takes in those of the last run. Where these are gone, what the identities say was cordoned still is. Where they
// cannot be read, each device that was known then may have been cordoned, and is until somebody says otherwise; where it is not
// known which were known, each that is found at this start.
func (l *loop) restoreCordons() {
	if l.Store == nil {
		return
	}
	cordons, err := l.Store.cordons()
	switch {
	case err == nil:
		l.cordons = cordons
	case errors.Is(err, fs.ErrNotExist):
		err = l.restoreRecorded(err)
	case errors.Is(err, unix.ENOTDIR): // nor may there ever have been anything else
		err = fmt.Errorf("%w; which devices were cordoned is not known: cordon them again", err)
	default:
		l.presume(append(l.known(), l.recorded...), mayHaveBeen)
		err = l.presumed(err, "all %d devices that were known are cordoned: uncordon those that were not")
	}
	if err != nil {
		l.Log.Error("cordons not read", "err", err)
	}
	l.unsaved = l.unsaved || !slices.Equal(l.recorded, slices.Sorted(maps.Keys(l.cordons)))
}

// restoreRecorded cordons what was cordoned when a file was there that is missing, and returns an error that tells of it, or that
// it is not known what was; nil: nothing was, so there need not have been one.
func (l *loop) restoreRecorded(missing error) error {
	switch {
	case len(l.recorded) > 0:
	case l.unread:
		return fmt.Errorf("%w; nor is it known which devices were cordoned, if any was: cordon these again", missing)
	default:
		return nil
	}
	l.presume(l.recorded, "it was before "+cordonFile+" was removed, for a reason that is not known: uncordon it if that is over")
	return l.presumed(missing, "what was cordoned still is, %d in all, and the reasons are not known: uncordon what is fit")
}

// known returns the IDs of the devices that a resource takes, or took when they were kept.
func (l *loop) known() (ids []string) {
	for id, e := range l.entries {
		if e.resource != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// presume cordons devices that were cordoned before, or may have been.
func (l *loop) presume(ids []string, reason string) {
	cordons := maps.Clone(l.cordons)
	if cordons == nil {
		cordons = make(map[string]Cordon)
	}
	for _, id := range ids {
		if _, is := cordons[id]; !is {
			cordons[id] = Cordon{Reason: reason}
		}
	}
	for _, id := range ids {
		l.setCordons(id, cordons)
	}
}

// presumed keeps what is presumed in the place of what cannot be read, and returns an error that tells what was done. Where it
// is not known which devices there were, what cannot be read stays in its place: the next start is to know that, too, unless
// somebody has said meanwhile which are cordoned.
func (l *loop) presumed(unread error, told string) error {
	if l.presuming = l.unread && !errors.Is(unread, fs.ErrNotExist) || len(l.cordons) == 0; l.presuming {
		return fmt.Errorf("%w; which devices were known is not known either: all that are found at this start are cordoned: uncordon those that were not", unread)
	}
	err := fmt.Errorf("%w; "+told, unread, len(l.cordons))
	if unkept := l.Store.secureCordons(l.cordons); unkept != nil {
		err = fmt.Errorf("%w; that is not kept: %w", err, unkept)
	}
	return err
}

// Same tells whether two cordons are one; nil is none.
func (c *Cordon) Same(other *Cordon) bool {
	if c == nil || other == nil {
		return c == other
	}
	a, b := *c, *other
	a.Since, b.Since = time.Time{}, time.Time{}
	return a == b && c.Since.Equal(other.Since)
}
