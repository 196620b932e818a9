// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

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
	return i.changeCordon(ctx, id, func(cordons map[string]api.Cordon) bool {
		if _, is := cordons[id]; is && c.Reason == api.Unexplained {
			return false
		}
		cordons[id] = c
		return true
	})
}

// Uncordon ends a cordon, also that of an absent device, and reports whether there was one. The errors are those of
// [Inventory.Cordon].
func (i *Inventory) Uncordon(ctx context.Context, id string) (was bool, err error) {
	err = i.changeCordon(ctx, id, func(cordons map[string]api.Cordon) bool {
		_, was = cordons[id]
		delete(cordons, id)
		return was
	})
	return was, err
}

// changeCordon carries out a change of the cordons, if the function makes one, and waits for the snapshot that shows it.
func (i *Inventory) changeCordon(ctx context.Context, id string, change func(map[string]api.Cordon) bool) error {
	select {
	case <-i.ready: // else a lost state would cordon the device again
	case <-i.done:
		return errStopped
	case <-ctx.Done():
		return fmt.Errorf("wait for the inventory: %w", ctx.Err())
	}
	i.cordoning.Lock() // one change at a time
	defer i.cordoning.Unlock()
	var before map[string]api.Cordon
	saveErr := i.lasting(ctx, func(l *loop) error {
		before = l.cordons
		next := make(map[string]api.Cordon)
		maps.Copy(next, before)
		if _, is := next[id]; !is && l.entries[id] == nil {
			return fmt.Errorf("%s: %w", id, ErrUnknownDevice)
		}
		if change(next) {
			l.setCordons(id, next)
		}
		return nil
	}, func(l *loop) { l.setCordons(id, before) })
	var stands *api.Cordon
	err := i.ask(context.WithoutCancel(ctx), func(l *loop) { stands = l.cordon(id) })
	if err == nil {
		err = i.await(ctx, id, func(s *Status) bool { return s == nil || s.Cordon.Same(stands) })
	}
	return cmp.Or(saveErr, err)
}

// setCordons replaces the cordons, of which that of a device has changed.
func (d *devices) setCordons(id string, next map[string]api.Cordon) {
	d.cordons = next
	d.saveLater()
	if e := d.entries[id]; e != nil {
		d.changed(e)
	}
}

// cordon returns the cordon of a device, or nil.
func (d *devices) cordon(id string) *api.Cordon {
	if c, is := d.cordons[id]; is {
		return &c
	}
	return nil
}

// cordonKnown cordons each device that a resource takes, since it may have been cordoned before.
func (d *devices) cordonKnown() {
	cordons := make(map[string]api.Cordon)
	maps.Copy(cordons, d.cordons)
	for id, e := range d.entries {
		if _, is := cordons[id]; !is && e.resource != "" {
			cordons[id] = api.Cordon{Reason: mayHaveBeen}
			d.changed(e)
		}
	}
	d.cordons = cordons
	d.saveLater()
}
