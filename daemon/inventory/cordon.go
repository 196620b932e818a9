// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/lease"
)

// ErrUnknownDevice is the error for an ID that is not in the inventory.
var ErrUnknownDevice = errors.New("no such device")

// errStopped is the error for calls after the inventory has stopped.
var errStopped = errors.New("the inventory has stopped")

// mayHaveBeen is the reason for the cordons that metalplug sets after it has lost the state file.
const mayHaveBeen = "metalplugd lost its state, and the device may have been cordoned; if it was not cordoned, uncordon the device"

// Cordon withholds a device from new pods until [Inventory.Uncordon] is called. Until then, the device is Unhealthy in the device
// list, with the cordon's reason. A pod that holds the device keeps it. A cordon survives restarts and reboots. When Cordon
// returns nil, the cordon is on disk. If Cordon returns an error, nothing has changed. A cordon without a reason
// ([api.Unexplained]) does not replace an existing cordon. The error may be [ErrUnknownDevice] or the context's error.
func (i *Inventory) Cordon(ctx context.Context, id string, c api.Cordon) error {
	return i.changeCordon(ctx, id, func(now *api.Cordon) *api.Cordon {
		if now != nil && c.Reason == api.Unexplained {
			return now
		}
		return &c
	})
}

// Uncordon ends a device's cordon, even if the device is absent. Uncordon reports whether the device was cordoned. The errors are
// those of [Inventory.Cordon].
func (i *Inventory) Uncordon(ctx context.Context, id string) (was bool, err error) {
	err = i.changeCordon(ctx, id, func(now *api.Cordon) *api.Cordon {
		was = now != nil
		return nil
	})
	return was, err
}

// changeCordon replaces a device's cordon. A nil cordon means that the device is not cordoned. changeCordon waits for the
// snapshot that shows the change. A cordon also cancels an order to erase, but only once the cordon is on disk. If metalplugd
// ends before then, the state file does not contain the order either (see [loop.record]).
func (i *Inventory) changeCordon(ctx context.Context, id string, change func(now *api.Cordon) *api.Cordon) error {
	// If the state was lost, metalplugd cordons all devices before the first snapshot. An earlier change could be lost.
	if err := i.Await(ctx, func(s *Snapshot) bool { return s.Version > 0 }); err != nil {
		return err
	}
	i.cordoning.Lock() // only one caller at a time may change cordons
	defer i.cordoning.Unlock()
	var before, after *api.Cordon
	saveErr := changeDurably(ctx, i, func(l *loop) error {
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
	i.postAbout(id, func(l *loop, e *entry) {
		if saveErr == nil && after != nil && e.lease.Order == lease.Erase {
			_ = l.apply(e, lease.Event{Name: lease.Changed, Reason: "the disk was cordoned"})
		}
	})
	err := i.Await(ctx, func(s *Snapshot) bool { d := s.Find(id); return d == nil || d.Cordon.Same(after) })
	return cmp.Or(saveErr, err)
}

// setCordon replaces a device's cordon, or ends it if c is nil. setCordon counts the change, unless c is already the cordon. An
// inspection then records what the last pod left on a disk, before the operator uses the disk.
func (d *devices) setCordon(id string, c *api.Cordon) {
	if d.cordons[id] != c {
		d.cordonCount[id]++
	}
	if d.cordons[id] = c; c == nil {
		delete(d.cordons, id)
	}
	d.saveLater()
	if d.stale = true; d.entries[id] != nil {
		d.queueVerdict(d.entries[id])
		d.invalidate(d.entries[id])
	}
}

// cordonKnown cordons all devices, because an operator may have cordoned any of them before the state was lost. cordonKnown also
// cordons devices that no resource matches, because a later configuration may offer them.
func (d *devices) cordonKnown() {
	for id := range d.entries {
		if d.cordons[id] == nil {
			d.setCordon(id, &api.Cordon{Reason: mayHaveBeen})
		}
	}
	d.saveLater() // replace the damaged file even if there is no device
}
