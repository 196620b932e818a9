// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// ErrUnknownDevice: the inventory has no device of that ID.
var ErrUnknownDevice = errors.New("no such device")

// errStopped: the inventory runs no more.
var errStopped = errors.New("the inventory has stopped")

// cordonShown is how long Cordon and Uncordon wait for the snapshot that shows it: while looks are under way there is
// one each publishGap.
const cordonShown = 10 * publishGap

// Unexplained is the reason of a cordon for which the operator gave none.
const Unexplained = "by the operator"

// mayHaveBeen is the reason of a cordon where the state of the last run is lost.
const mayHaveBeen = "it may have been before the state was lost: uncordon it if not"

// Cordon is why a device is kept from new pods, by whom and since when.
type Cordon struct {
	Reason string    `json:"reason"`
	UID    uint32    `json:"uid"`            // of who asked for it, as the kernel says
	User   string    `json:"user"`           // the name of that; empty: it has none
	Login  string    `json:"login"`          // who had logged in there, as the client says, for sudo makes root of everybody; empty: not known
	Since  time.Time `json:"since,omitzero"` // zero: not known, nor who it was
}

// Cordon keeps a device from new pods, for a reason that people are told, until [Inventory.Uncordon]. It is listed
// Unhealthy; a pod that holds it keeps it. It holds across restarts and reboots: c is on disk when Cordon returns, else
// that is an error and nothing has changed. A cordon that is [Unexplained] does not replace another. The error may also be
// [ErrUnknownDevice] or that of ctx.
func (i *Inventory) Cordon(ctx context.Context, id string, c Cordon) error {
	return i.changeCordon(ctx, id, func(cordons map[string]Cordon) bool {
		if _, is := cordons[id]; is && c.Reason == Unexplained {
			return false
		}
		cordons[id] = c
		return true
	})
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

// changeCordon has a change of the cordons saved, if it says that it is one, then makes it take effect and waits a little for it
// to be seen. The order matters: a cordon that is in effect and not on disk would be gone after a power failure.
func (i *Inventory) changeCordon(ctx context.Context, id string, change func(map[string]Cordon) bool) error {
	select {
	case <-i.ready: // else a lost state would cordon the device again
	case <-i.done:
		return errStopped
	case <-ctx.Done():
		return fmt.Errorf("wait for the inventory: %w", ctx.Err())
	}
	i.cordoning.Lock() // one change at a time
	defer i.cordoning.Unlock()
	// From here on the change is carried out though the client may have gone: the loop waits for nothing.
	unhurried := context.WithoutCancel(ctx)
	var wanted *Cordon
	var known bool
	var saved chan error // nil: there was nothing to change
	if err := i.ask(unhurried, func(l *loop) {
		next := make(map[string]Cordon)
		maps.Copy(next, l.cordons)
		_, known = next[id]
		known = known || l.entries[id] != nil
		if !known || !change(next) {
			return
		}
		if c, cordoned := next[id]; cordoned {
			wanted = &c
		}
		saved = l.saveCordons(next)
	}); err != nil {
		return err
	}
	switch {
	case !known:
		return fmt.Errorf("%s: %w", id, ErrUnknownDevice)
	case saved == nil:
		return nil
	}
	err := <-saved
	if askErr := i.ask(unhurried, func(l *loop) {
		if err != nil {
			l.saveCordons(l.cordons)
			return
		}
		l.cordons = l.nextCordons
		if e := l.entries[id]; e != nil {
			l.changed(e)
		}
	}); err == nil && askErr == nil {
		i.awaitCordon(ctx, id, wanted)
	}
	if err != nil {
		return fmt.Errorf("save cordons: %w", err)
	}
	return nil
}

// saveCordons saves cordons. The channel has nil once they are on disk, or the reason why they are not.
func (l *loop) saveCordons(next map[string]Cordon) chan error {
	l.nextCordons, l.unsaved = next, true
	l.save()
	if l.Store == nil {
		saved := make(chan error, 1)
		saved <- nil
		return saved
	}
	return l.Store.flush()
}

// awaitCordon waits a little until a snapshot shows that cordon of a device; nil: none.
func (i *Inventory) awaitCordon(ctx context.Context, id string, wanted *Cordon) {
	ctx, cancel := context.WithTimeout(ctx, i.Shown)
	defer cancel()
	_ = i.await(ctx, id, func(s *Status) bool { return s == nil || s.Cordon.Same(wanted) }) // it holds all the same
}

// cordonKnown cordons each device that a resource takes: it may have been cordoned before.
func (l *loop) cordonKnown() {
	cordons := make(map[string]Cordon)
	maps.Copy(cordons, l.cordons)
	for id, e := range l.entries {
		if _, is := cordons[id]; !is && e.resource != "" {
			cordons[id] = Cordon{Reason: mayHaveBeen}
			l.changed(e)
		}
	}
	l.cordons, l.nextCordons = cordons, cordons
	l.saveSoon()
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
