// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// act is one reset or erasure.
type act struct {
	status   *inventory.Status
	together []string // sysfs paths of other devices that it hits
	method   string
	erase    bool
}

// reset resets a device by a method of the configuration; false: there is nothing that could be done to it.
func (t *Turnover) reset(ctx context.Context, s *inventory.Status, method string) (done bool, err error) {
	d := s.Device
	if method == Auto {
		method = None
		if d.Class.Auto != nil && s.Target != nil { // of a group there is none: it is several devices
			method, err = ask(ctx, t, d.ID, func() string { return d.Class.Auto(t.Host, *d) })
			if err != nil {
				return false, fmt.Errorf("reset %s: %w", d.ID, err)
			}
		}
	}
	if method == None || method == "" || t.Host.Touch.Reset == nil {
		return false, nil
	}
	return true, t.perform(ctx, act{status: s, method: method})
}

// again returns how a device stands after a reset of ours, which may have made a disk appear anew, with another
// diskseq: then it is known by that. One that does not say that it is the same disk is left to be found another.
func (t *Turnover) again(ctx context.Context, s *inventory.Status) (*inventory.Status, error) {
	d := s.Device
	if d.Class == nil || d.Class.Target == nil || !s.Target.IsDisk() {
		return s, nil
	}
	target, err := ask(ctx, t, d.ID, func() *device.Target { return d.Class.Target(t.Host, *d) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.ID, err)
	}
	if medium := s.Target.Medium(); medium == "" || target.Medium() != medium {
		return s, nil
	}
	now := *s
	now.Target = target
	return &now, nil
}

// erase erases a disk. Contents that no pod has left there refuse it.
func (t *Turnover) erase(ctx context.Context, s *inventory.Status, scrub string) (done bool, err error) {
	if t.Host.Touch.Erase == nil {
		return false, nil
	}
	return true, t.perform(ctx, act{status: s, method: scrub, erase: true})
}

// perform does it, with everything else that it hits held still.
func (t *Turnover) perform(ctx context.Context, a act) error {
	d := a.status.Device
	if target := a.status.Target; target == nil || a.erase && !target.Disk {
		return fmt.Errorf("%s %s: %w: devices of this kind know nothing of the sort", a.method, d.ID, ErrUnfit)
	}
	release, err := t.together(ctx, &a)
	if err != nil {
		return fmt.Errorf("%s %s: %w", a.method, d.ID, err)
	}
	defer release()
	began := time.Now()
	done, err := t.touch(ctx, a)
	took := time.Since(began)
	if t.Done != nil {
		t.Done(a.status.Resource, a.method, took, err)
	}
	event := audit.Reset
	if a.erase {
		event = audit.Erased
	}
	t.note(a.status, event, err, audit.Entry{Method: a.method, Verified: done, Seconds: took.Seconds()})
	if err != nil {
		return fmt.Errorf("%s %s: %w", a.method, d.ID, err)
	}
	return nil
}

func (t *Turnover) touch(ctx context.Context, a act) (done string, err error) {
	target := *a.status.Target
	target.Together, target.Print, target.Resource = a.together, a.status.Print, a.status.Resource
	if a.erase {
		return t.wipe(ctx, target, a)
	}
	return t.Host.Touch.Reset(ctx, target, a.method, a.status.Leftover)
}

// wipe erases. What was known of the disk is forgotten before, for good: after a crash in between it is not what is there.
func (t *Turnover) wipe(ctx context.Context, target device.Target, a act) (done string, err error) {
	if target.Print != 0 {
		if err := t.Inventory.Kept(ctx); err != nil {
			return "", fmt.Errorf("%w: that it is erased could be forgotten: %w", ErrUnfit, err)
		}
	}
	done, err = t.Host.Touch.Erase(ctx, target, a.method, a.status.Leftover)
	if err != nil && !errors.Is(err, device.ErrForeign) && unlessBusy(err) != nil {
		err = halfErased{err}
	}
	return done, err
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
	var ids []string
	paths, err := t.hits(ctx, a.status, a.method)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		other := t.at(path)
		if other == nil {
			return nil, fmt.Errorf("%w: it would hit %s, which is not in an offer", ErrUnfit, path)
		}
		id := other.Device.ID
		now, err := t.Inventory.Current(ctx, id)
		switch {
		case err != nil:
			return nil, err
		case now.Held:
			return nil, fmt.Errorf("%w: it would hit %s, which a pod holds", ErrBusy, id)
		case t.careOf(now.Resource).Open:
			return nil, fmt.Errorf("%w: it would hit %s, which others may be using", ErrUnfit, id)
		case a.erase && (now.Used != "" || now.Stale):
			return nil, fmt.Errorf("%w: it would hit %s: %s", ErrUnfit, id, cmp.Or(now.Used, now.Reason))
		}
		ids, a.together = append(ids, id), append(a.together, path)
	}
	for _, id := range ids {
		t.Inventory.Work(id, "")
	}
	return func() {
		for _, id := range ids {
			t.Inventory.Worked(id, inventory.Outcome{})
		}
	}, nil
}

// at returns the offered device at a sysfs path, or nil.
func (t *Turnover) at(sysPath string) *inventory.Status {
	snapshot, _ := t.Inventory.Snapshot()
	for _, offer := range snapshot.Offers {
		for _, s := range offer.Devices {
			if s.Present && s.Device.SysPath == sysPath {
				return s
			}
		}
	}
	return nil
}
