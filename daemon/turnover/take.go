// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"fmt"
	"slices"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// take waits until nobody else does anything to a device, nor to those that would be hit too, and returns how it stands
// then. The error is [ErrBusy] when ctx ends before, [device.ErrUnanswered] when the hardware has not answered by then, or
// [inventory.ErrUnknownDevice].
func (t *Turnover) take(ctx context.Context, id string, methods ...string) (s *inventory.Status, unlock func(), err error) {
	if s, err = t.Inventory.Current(ctx, id); err != nil {
		return nil, nil, err
	}
	ids := []string{id}
	for _, method := range methods {
		paths, err := t.hits(ctx, s, method)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", id, err)
		}
		for _, path := range paths {
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

// ask has the hardware of a device asked by f and gives up when ctx ends: a read of a wedged PCIe device blocks for good and
// cannot be cancelled. Then f goes on beside, and nobody asks that device again until it is back.
func ask[T any](ctx context.Context, t *Turnover, id string, f func() T) (answer T, err error) {
	asking := t.slot("ask " + id) // no ID has a blank
	select {
	case asking <- struct{}{}:
	case <-ctx.Done():
		return answer, fmt.Errorf("%w from the hardware: %w", device.ErrUnanswered, ctx.Err())
	}
	answers := make(chan T, 1)
	go func() {
		defer func() { <-asking }()
		answers <- f()
	}()
	select {
	case answer = <-answers:
		return answer, nil
	case <-ctx.Done():
		return answer, fmt.Errorf("%w from the hardware: %w", device.ErrUnanswered, ctx.Err())
	}
}
