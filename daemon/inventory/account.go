// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Current returns the newest state of a device. The state contains every change that was posted before the call, even if no
// snapshot shows the change yet. Current waits for the goroutine that owns the inventory. The error is [ErrUnknownDevice]
// or the error of ctx.
func (i *Inventory) Current(ctx context.Context, id string) (*Status, error) {
	var s *Status
	if err := i.ask(ctx, func(l *loop) { s = l.current(id) }); err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fmt.Errorf("%s: %w", id, ErrUnknownDevice)
	}
	return s, nil
}

// current returns the newest state of a device. Unlike the status in a snapshot, this state includes the result of the last
// inspection even while metalplug works on the device.
func (l *loop) current(id string) *Status {
	e := l.entries[id]
	if e == nil || e.status == nil {
		return nil
	}
	s := l.judge(e, time.Now())
	s.Observation = e.observation()
	return s
}

// Kept waits until every change that was posted before the call is on disk. Without a store, it does not wait. The error
// comes from the write or from ctx.
func (i *Inventory) Kept(ctx context.Context) error {
	if err := i.ask(ctx, (*loop).save); err != nil || i.Store == nil {
		return err
	}
	return i.Store.Flush(ctx)
}

// changeDurably calls the function change, and returns nil once the change is on disk. After an error, nothing has changed.
// Either the function change returned the error, or the change could not be saved and the function undo has reverted it.
func changeDurably(ctx context.Context, i *Inventory, change func(*loop) error, undo func(*loop)) error {
	var refused error
	if err := i.ask(ctx, func(l *loop) { refused = change(l) }); err != nil || refused != nil {
		return cmp.Or(err, refused)
	}
	if err := i.Kept(ctx); err != nil {
		_ = i.ask(context.WithoutCancel(ctx), undo)
		return fmt.Errorf("not saved: %w", err)
	}
	return nil
}

// Started waits for a snapshot that shows that a container was started with each of these devices. All later calls to
// Allocate see this snapshot. Started returns an error if ctx or the inventory ends first.
func (i *Inventory) Started(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		if err := i.await(ctx, id, func(s *Status) bool { return s == nil || s.Used }); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the function wanted returns true for the device in the newest snapshot. It passes nil to this function
// if the snapshot does not contain the device.
func (i *Inventory) await(ctx context.Context, id string, wanted func(*Status) bool) error {
	for {
		snapshot, changed := i.Snapshot()
		if wanted(snapshot.Find(id)) {
			return nil
		}
		select {
		case <-changed:
		case <-i.done:
			return errStopped
		case <-ctx.Done():
			return fmt.Errorf("wait for the inventory: %w", ctx.Err())
		}
	}
}
