// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
)

// take waits until no other worker works on a device, nor on those that the methods would hit too. It locks them in the order
// of their IDs, so that two workers cannot wait for each other. The error is [ErrBusy] when ctx ends before,
// [device.ErrUnanswered] when the hardware has not answered by then, or [inventory.ErrUnknownDevice].
func (t *Turnover) take(ctx context.Context, id string, methods ...string) (unlock func(), err error) {
	s, err := t.Inventory.Current(ctx, id)
	if err != nil {
		return nil, err
	}
	ids := []string{id}
	for _, method := range methods {
		paths, err := t.hits(ctx, s, method)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		for _, path := range paths {
			if other := t.at(path); other != nil {
				ids = append(ids, other.Device.ID)
			}
		}
	}
	var slots []chan struct{}
	unlock = func() {
		for _, slot := range slots {
			<-slot
		}
	}
	slices.Sort(ids)
	for _, locked := range slices.Compact(ids) {
		slot := t.slot(locked)
		select {
		case slot <- struct{}{}:
			slots = append(slots, slot)
		case <-ctx.Done():
			unlock()
			return nil, fmt.Errorf("%s: %w: something else is being done to %s: %w", id, ErrBusy, locked, ctx.Err())
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

// ask calls f, which asks the hardware of a device, and gives up when ctx ends. A read of a wedged PCIe device blocks
// permanently and cannot be cancelled. Then f goes on, and that device is not asked again until it is back.
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

// method returns the method to reset a device by the configuration, or empty.
func (t *Turnover) method(ctx context.Context, s *inventory.Status, method string) (string, error) {
	d := s.Device
	switch {
	case method == None:
		return "", nil
	case method != Auto:
		return method, nil
	case d.Class.Auto == nil || s.Target == nil: // a group of devices has none
		return "", nil
	}
	method, err := ask(ctx, t, d.ID, func() string { return d.Class.Auto(t.Host, *d) })
	if err != nil {
		return "", fmt.Errorf("reset %s: %w", d.ID, err)
	}
	return method, nil
}

// hits returns the sysfs paths of the other devices that a method hits.
func (t *Turnover) hits(ctx context.Context, s *inventory.Status, method string) ([]string, error) {
	d := s.Device
	if d.Class == nil || d.Class.Hits == nil || !s.Present {
		return nil, nil
	}
	return ask(ctx, t, d.ID, func() []string { return d.Class.Hits(t.Host, *d, method) })
}

// touch asks the helper for work on a device by the methods of its care. The other devices that it hits are locked.
func (t *Turnover) touch(ctx context.Context, care Care, s *inventory.Status, todo lease.Work) (p device.Prepared, err error) {
	blank := todo.Content == lease.Blank
	w := device.Work{Resource: s.Resource, Tenant: todo.Content == lease.OfTenant, Blank: blank, ByHand: todo.ByHand}
	if w.Resource == "" {
		w.Resource = s.Taker
	}
	if todo.Erase {
		w.Scrub, w.Blank = care.Scrub, blank || s.LeftBlank && !todo.ByHand // later data is not the tenant's
	}
	if todo.Reset {
		if todo.ByHand && care.Method == None && !todo.Erase {
			care.Method = Auto
		}
		if w.Method, err = t.method(ctx, s, care.Method); err != nil {
			return p, err
		}
	}
	if t.Host.Touch.Prepare == nil || w.Method == "" && w.Scrub == "" && !w.Blank {
		return p, nil
	}
	methods := slices.DeleteFunc([]string{w.Method, w.Scrub}, func(m string) bool { return m == "" })
	what := strings.TrimSpace(strings.Join(methods, ", ") + " " + s.Device.ID)
	if s.Target == nil || w.Scrub != "" && !s.Target.Disk {
		return p, fmt.Errorf("%s: %w: devices of this kind know nothing of the sort", what, ErrUnfit)
	}
	target := *s.Target
	target.Fingerprint, target.Pods = s.Fingerprint, s.Tenants
	if w.Scrub != "" {
		target.Written = s.Written
	}
	if todo.ByHand && s.Evidence.Scrub == "" {
		target.Fingerprint = "" // the operator means any content
	}
	release, err := t.together(ctx, s, &target, methods, w.Scrub != "")
	if err != nil {
		return p, fmt.Errorf("%s: %w", what, err)
	}
	defer release()
	began := time.Now()
	p, err = t.prepared(ctx, target, w)
	t.count(s, w, methods, p, time.Since(began), err)
	if err != nil {
		return p, fmt.Errorf("%s: %w", what, err)
	}
	return p, nil
}

// count counts and notes a reset and an erasure. A proof that a disk is blank is neither.
func (t *Turnover) count(s *inventory.Status, w device.Work, methods []string, p device.Prepared, took time.Duration, err error) {
	if err != nil && len(methods) > 1 { // which of them has failed is in the error
		methods = []string{strings.Join(methods, ", ")}
	}
	for _, method := range methods {
		event := audit.Reset
		if method == w.Scrub {
			event = audit.Erased
		}
		if t.Done != nil {
			t.Done(w.Resource, method, took, err)
		}
		t.note(s, event, err, audit.Entry{Method: method, Verified: p.Done, Seconds: took.Seconds()})
	}
}

// prepared asks the helper. Before an erasure the fingerprint of the disk is dropped from the state file, since it is wrong
// after a crash in between.
func (t *Turnover) prepared(ctx context.Context, target device.Target, w device.Work) (p device.Prepared, err error) {
	if w.Scrub != "" && target.Fingerprint != "" {
		if err := t.Inventory.Kept(ctx); err != nil {
			return p, fmt.Errorf("%w: that it is erased could be forgotten: %w", ErrUnfit, err)
		}
	}
	p, err = t.Host.Touch.Prepare(ctx, target, w)
	switch {
	case err == nil && w.Scrub != "" && !p.Erased:
		err = errors.New("the helper has not verified the erasure")
	case err == nil && target.Disk && p.Appearance == "" && target.Appearance() != "":
		err = errors.New("another medium may be in its place: nothing proves that it is the same disk as before")
	}
	if err != nil && w.Scrub != "" && !errors.Is(err, ErrUnfit) && unlessBusy(err) != nil {
		err = halfErased{err}
	}
	return p, err
}

// together begins work on the other devices that methods hit, which [Turnover.take] has locked. It returns an error if a pod
// holds one of them, or if the daemon may not hit it.
func (t *Turnover) together(ctx context.Context, s *inventory.Status, target *device.Target, methods []string, erases bool) (over func(), err error) {
	var begun []string
	end := func() {
		for _, id := range begun {
			t.Inventory.Worked(id, inventory.Outcome{})
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	for _, method := range methods {
		hit, err := t.hits(ctx, s, method)
		if err != nil {
			return nil, err
		}
		target.Together = append(target.Together, hit...)
	}
	slices.Sort(target.Together)
	target.Together = slices.Compact(target.Together)
	for _, path := range target.Together {
		other := t.at(path)
		if other == nil {
			return nil, fmt.Errorf("%w: it would hit %s, which is not in an offer", ErrUnfit, path)
		}
		id := other.Device.ID
		now, err := t.Inventory.Begin(ctx, id, "", "")
		if err != nil {
			return nil, err
		}
		begun = append(begun, id)
		switch {
		case now.Held():
			return nil, fmt.Errorf("%w: it would hit %s, which a pod holds", ErrBusy, id)
		case t.careOf(now).Open:
			return nil, fmt.Errorf("%w: it would hit %s, which others may be using", ErrUnfit, id)
		case erases && now.Reserved != "":
			return nil, fmt.Errorf("%w: it would hit %s: %s", ErrUnfit, id, now.Reserved)
		case erases && (now.Stale || now.Resource == ""):
			return nil, fmt.Errorf("%w: it would hit %s: %s", ErrUnfit, id, now.Reason)
		}
	}
	return end, nil
}

// at returns the device at a sysfs path that is offered, or would be if it were proven, or nil.
func (t *Turnover) at(sysPath string) *inventory.Status {
	snapshot, _ := t.Inventory.Snapshot()
	for s := range snapshot.All() {
		ours := s.Resource != "" || s.Taker != "" && s.Blocked == ""
		if s.Present && s.Device.SysPath == sysPath && ours {
			return s
		}
	}
	return nil
}
