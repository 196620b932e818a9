// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// ErrUnknownDevice is the error for an ID that the inventory does not have.
var ErrUnknownDevice = errors.New("no such device")

// errStopped is the error after the end of the inventory.
var errStopped = errors.New("the inventory has stopped")

// cordonShown is how long Cordon and Uncordon wait for the snapshot that shows it. During looks there is one each publishGap.
const cordonShown = 10 * publishGap

// Unexplained is the reason of a cordon for which the operator gave none.
const Unexplained = "by the operator"

// mayHaveBeen is the reason of a cordon where the state of the last run is lost.
const mayHaveBeen = "it may have been before the state was lost: uncordon it if not"

// Cordon is why a device is kept from new pods, by whom and since when.
type Cordon struct {
	Reason string    `json:"reason"`
	UID    uint32    `json:"uid"`            // of the client, as the kernel reports it
	User   string    `json:"user"`           // its name, or empty
	Login  string    `json:"login"`          // the login name that the client reports, since sudo makes every user root, or empty
	Since  time.Time `json:"since,omitzero"` // zero if the state was lost
}

// Cordon keeps a device from new pods until [Inventory.Uncordon], for a reason that people are shown. The device is listed
// Unhealthy, and a pod that holds it keeps it. A cordon outlasts restarts and reboots. It is on disk when Cordon returns nil.
// With an error nothing has changed. A cordon that is [Unexplained] does not replace another. The error may also be
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

// Uncordon ends a cordon, also that of an absent device, and reports whether there was one. The errors are those of
// [Inventory.Cordon].
func (i *Inventory) Uncordon(ctx context.Context, id string) (was bool, err error) {
	err = i.changeCordon(ctx, id, func(cordons map[string]Cordon) bool {
		_, was = cordons[id]
		delete(cordons, id)
		return was
	})
	return was, err
}

// changeCordon saves a change of the cordons, if the function makes one. Then the change takes effect, and changeCordon waits a
// little for the snapshot that shows it. The order matters, since a cordon that is not on disk would be gone after a power
// failure.
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
	// From here on the change is carried out though the client may have gone. The loop never waits.
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
	return l.Store.Flush()
}

// awaitCordon waits a little until a snapshot shows that cordon of a device, or with nil that there is none.
func (i *Inventory) awaitCordon(ctx context.Context, id string, wanted *Cordon) {
	ctx, cancel := context.WithTimeout(ctx, i.Shown)
	defer cancel()
	_ = i.await(ctx, id, func(s *Status) bool { return s == nil || s.Cordon.Same(wanted) }) // it holds all the same
}

// cordonKnown cordons each device that a resource takes, since it may have been cordoned before.
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

// Same reports whether two cordons are equal. Either may be nil.
func (c *Cordon) Same(other *Cordon) bool {
	if c == nil || other == nil {
		return c == other
	}
	a, b := *c, *other
	a.Since, b.Since = time.Time{}, time.Time{}
	return a == b && c.Since.Equal(other.Since)
}
