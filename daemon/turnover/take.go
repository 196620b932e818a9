// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"fmt"
	"slices"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// take waits until nobody else does anything to a device, nor to those that would be hit too, and returns how it stands
// then. The error is [ErrBusy] when ctx ends before, or [inventory.ErrUnknownDevice].
func (t *Turnover) take(ctx context.Context, id string, methods ...string) (s *inventory.Status, unlock func(), err error) {
	if s, err = t.Inventory.Current(ctx, id); err != nil {
		return nil, nil, err
	}
	ids := []string{id}
	for _, method := range methods {
		for _, path := range t.hits(s, method) {
			if other := t.at(path); other != nil {
				ids = append(ids, other.Device.ID)
			}
		}
	}
	if unlock, err = t.lock(ctx, ids); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", id, err)
	}
	if s, err = t.Inventory.Current(ctx, id); err != nil {
		unlock()
		return nil, nil, err
	}
	return s, unlock, nil
}

// lock locks devices, in the order of their IDs, so that two of us cannot wait for each other.
func (t *Turnover) lock(ctx context.Context, ids []string) (unlock func(), err error) {
	slices.Sort(ids)
	var slots []chan struct{}
	unlock = func() {
		for _, slot := range slots {
			<-slot
		}
	}
	for _, id := range slices.Compact(ids) {
		slot := t.slot(id)
		select {
		case slot <- struct{}{}:
			slots = append(slots, slot)
		case <-ctx.Done():
			unlock()
			return nil, fmt.Errorf("%w: something else is being done to %s: %w", ErrBusy, id, ctx.Err())
		}
	}
	return unlock, nil
}

func (t *Turnover) slot(id string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.locks == nil {
		t.locks = make(map[string]chan struct{})
	}
	if t.locks[id] == nil {
		t.locks[id] = make(chan struct{}, 1)
	}
	return t.locks[id]
}
