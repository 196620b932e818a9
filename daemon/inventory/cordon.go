// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/api"
)

// ErrUnknownDevice is the error for an ID that the inventory does not have.
var ErrUnknownDevice = errors.New("no such device")

// errStopped is the error after the end of the inventory.
var errStopped = errors.New("the inventory has stopped")

// mayHaveBeen is the reason of a cordon where the state of the last run is lost.
const mayHaveBeen = "it may have been before the state was lost: uncordon it if not"

// Cordon keeps a device from new pods until [Inventory.Uncordon], for a reason that people are shown. The device is listed
// Unhealthy, and a pod that holds it keeps it. A cordon outlasts restarts and reboots. It is on disk when Cordon returns nil.
// With an error nothing has changed. A cordon that is [api.Unexplained] does not replace another. The error may also be
// [ErrUnknownDevice] or that of ctx.
func (i *Inventory) Cordon(ctx context.Context, id string, c api.Cordon) error {
	return i.changeCordon(ctx, id, func(now *api.Cordon) *api.Cordon {
		if now != nil && c.Reason == api.Unexplained {
			return now
		}
		return &c
	})
}

// Uncordon ends a cordon, also that of an absent device, and reports whether there was one. The errors are those of
// [Inventory.Cordon].
func (i *Inventory) Uncordon(ctx context.Context, id string) (was bool, err error) {
	err = i.changeCordon(ctx, id, func(now *api.Cordon) *api.Cordon {
		was = now != nil
		return nil
	})
	return was, err
}

// changeCordon replaces the cordon of a device, or nil, and waits for the snapshot that shows it.
func (i *Inventory) changeCordon(ctx context.Context, id string, change func(now *api.Cordon) *api.Cordon) error {
	select {
	case <-i.ready: // else a lost state would cordon the device again
	case <-i.done:
		return errStopped
	case <-ctx.Done():
		return fmt.Errorf("wait for the inventory: %w", ctx.Err())
	}
	i.cordoning.Lock() // one change at a time
	defer i.cordoning.Unlock()
	var before, after *api.Cordon
	saveErr := i.lasting(ctx, func(l *loop) error {
		if before = l.cordons[id]; before == nil && l.entries[id] == nil {
			return fmt.Errorf("%s: %w", id, ErrUnknownDevice)
		}
		after = change(before)
		l.setCordon(id, after)
		return nil
	}, func(l *loop) {
		after = before
		l.setCordon(id, after)
	})
	err := i.await(ctx, id, func(s *Status) bool { return s == nil || s.Cordon == after })
	return cmp.Or(saveErr, err)
}

// setCordon replaces the cordon of a device, or with nil ends it.
func (d *devices) setCordon(id string, c *api.Cordon) {
	if d.cordons[id] = c; c == nil {
		delete(d.cordons, id)
	}
	d.saveLater()
	if e := d.entries[id]; e != nil {
		d.changed(e)
	}
}

// cordonKnown cordons each device that a resource takes, since it may have been cordoned before.
func (d *devices) cordonKnown() {
	for id, e := range d.entries {
		if d.cordons[id] == nil && e.resource != "" {
			d.setCordon(id, &api.Cordon{Reason: mayHaveBeen})
		}
	}
	d.saveLater()
}
