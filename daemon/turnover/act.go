// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// act is one [device.Touch].Prepare.
type act struct {
	status   *inventory.Status
	together []string // sysfs paths of other devices that it hits
	work     device.Work
}

// name is how errors name it.
func (a act) name() string { return strings.Join(a.methods(), ", ") }

// methods returns the methods of resetting and erasing.
func (a act) methods() []string {
	return slices.DeleteFunc([]string{a.work.Method, a.work.Scrub}, func(m string) bool { return m == "" })
}

// method returns how a device is to be reset, as a method of the configuration says; empty: not at all.
func (t *Turnover) method(ctx context.Context, s *inventory.Status, method string) (string, error) {
	d := s.Device
	switch {
	case method == None:
		return "", nil
	case method != Auto:
		return method, nil
	case d.Class.Auto == nil || s.Target == nil: // of a group there is none: it is several devices
		return "", nil
	}
	method, err := ask(ctx, t, d.ID, func() string { return d.Class.Auto(t.Host, *d) })
	if err != nil {
		return "", fmt.Errorf("reset %s: %w", d.ID, err)
	}
	return method, nil
}

// touch does the work to a device, with everything else that it hits held still.
func (t *Turnover) touch(ctx context.Context, s *inventory.Status, w device.Work) (p device.Prepared, err error) {
	if t.Host.Touch.Prepare == nil || w.Method == "" && w.Scrub == "" && !w.Blank {
		return p, nil
	}
	a := act{status: s, work: w}
	a.work.Resource = cmp.Or(s.Resource, s.Taker)
	id := s.Device.ID
	if s.Target == nil || w.Scrub != "" && !s.Target.Disk {
		return p, fmt.Errorf("%s %s: %w: devices of this kind know nothing of the sort", a.name(), id, ErrUnfit)
	}
	release, err := t.together(ctx, &a)
	if err != nil {
		return p, fmt.Errorf("%s %s: %w", a.name(), id, err)
	}
	defer release()
	began := time.Now()
	p, err = t.prepared(ctx, a)
	t.count(a, p, time.Since(began), err)
	if err != nil && a.name() != "" {
		return p, fmt.Errorf("%s %s: %w", a.name(), id, err)
	} else if err != nil {
		return p, fmt.Errorf("%s: %w", id, err)
	}
	return p, nil
}

// count counts and notes a reset and an erasure. A proof that a disk is blank is neither.
func (t *Turnover) count(a act, p device.Prepared, took time.Duration, err error) {
	methods := a.methods()
	if err != nil && len(methods) > 1 { // which of them has failed is in the error
		methods = []string{a.name()}
	}
	for _, method := range methods {
		event := audit.Reset
		if method == a.work.Scrub {
			event = audit.Erased
		}
		if t.Done != nil {
			t.Done(a.work.Resource, method, took, err)
		}
		t.note(a.status, event, err, audit.Entry{Method: method, Verified: p.Done, Seconds: took.Seconds()})
	}
}

// prepared asks the helper. What was known of the disk is forgotten before it is erased, permanently: after a crash in
// between it is not what is there.
func (t *Turnover) prepared(ctx context.Context, a act) (p device.Prepared, err error) {
	target := *a.status.Target
	target.Together, target.Fingerprint, target.Pods = a.together, a.status.Fingerprint, a.status.Tenants
	if a.work.Scrub != "" && target.Fingerprint != "" {
		if err := t.Inventory.Kept(ctx); err != nil {
			return p, fmt.Errorf("%w: that it is erased could be forgotten: %w", ErrUnfit, err)
		}
	}
	p, err = t.Host.Touch.Prepare(ctx, target, a.work)
	switch {
	case err == nil && a.work.Scrub != "" && !p.Erased:
		err = errors.New("the helper has not verified the erasure")
	case err == nil && target.Disk && p.Appearance == "" && target.Appearance() != "":
		err = errors.New("another medium may be in its place: nothing proves that it is the same disk as before")
	}
	if err != nil && a.work.Scrub != "" && !errors.Is(err, ErrUnfit) && unlessBusy(err) != nil {
		err = halfErased{err}
	}
	return p, err
}

// hits returns the sysfs paths of the other devices that a method hits.
func (t *Turnover) hits(ctx context.Context, s *inventory.Status, method string) ([]string, error) {
	d := s.Device
	if d.Class == nil || d.Class.Hits == nil || !s.Present {
		return nil, nil
	}
	return ask(ctx, t, d.ID, func() []string { return d.Class.Hits(t.Host, *d, method) })
}

// together takes in the other devices that an act hits, which [Turnover.take] has locked. One that a pod holds, or that
// is not ours to hit, forbids it.
func (t *Turnover) together(ctx context.Context, a *act) (release func(), err error) {
	var ids, paths, begun []string
	for _, method := range a.methods() {
		hit, err := t.hits(ctx, a.status, method)
		if err != nil {
			return nil, err
		}
		paths = append(paths, hit...)
	}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		other := t.at(path)
		if other == nil {
			return nil, fmt.Errorf("%w: it would hit %s, which is not in an offer", ErrUnfit, path)
		}
		id := other.Device.ID
		now, err := t.Inventory.Current(ctx, id)
		switch {
		case err != nil:
			return nil, err
		case now.Held():
			return nil, fmt.Errorf("%w: it would hit %s, which a pod holds", ErrBusy, id)
		case t.careOf(cmp.Or(now.Resource, now.Taker)).Open:
			return nil, fmt.Errorf("%w: it would hit %s, which others may be using", ErrUnfit, id)
		case a.work.Scrub != "" && (now.Reserved != "" || now.Stale || now.Resource == ""):
			return nil, fmt.Errorf("%w: it would hit %s: %s", ErrUnfit, id, cmp.Or(now.Reserved, now.Reason))
		}
		ids, a.together = append(ids, id), append(a.together, path)
	}
	over := func() {
		for _, id := range begun {
			t.Inventory.Worked(id, inventory.Outcome{})
		}
	}
	for _, id := range ids {
		if _, err := t.Inventory.Begin(ctx, id, "", ""); err != nil {
			over()
			return nil, err
		}
		begun = append(begun, id)
	}
	return over, nil
}

// at returns the device at a sysfs path that is offered, or would be if it were proven; nil: there is none.
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
