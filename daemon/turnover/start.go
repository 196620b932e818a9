// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
)

// startLimit is how long all that precedes a start may take: the kubelet allows PreStartContainer 30 s
// (kubernetes v1.36, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs), of which some are for the way there and back,
// and for the answer of the helper.
const startLimit = 25 * time.Second

// Start does what precedes the start of a container with these devices of a resource, to all at once. It may be called
// again for the same devices, as the kubelet does. On any error the container must not start. [ErrBusy] is one after
// which the device is as it was: its own pod has it, or another has it still. It blocks until all is done and noted, at
// most 29 seconds. The end of ctx does not stop it: a kubelet that goes away has not made a device unfit.
func (t *Turnover) Start(ctx context.Context, resource string, devices []*inventory.Status) error {
	care := t.careOf(resource)
	limit := min(startLimit, max(care.Timeout, time.Second)) + device.AnswerTime
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	owners, err := t.owners()
	if err != nil {
		return err
	}
	ids := make([]string, len(devices))
	errs := make([]error, len(devices))
	var all sync.WaitGroup
	for i, s := range devices {
		ids[i] = s.Device.ID
		all.Go(func() { errs[i] = t.startOne(ctx, care, s.Device.ID, owners[s.Device.ID]) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// What has to be erased must not be forgotten, nor that the evidence of a disk has ended. Of others it is only a pity.
	disks := slices.ContainsFunc(devices, func(s *inventory.Status) bool { return s.Target.IsDisk() })
	if err := t.Inventory.Kept(ctx, ids...); err != nil && (care.AtRelease || care.scrubs() || disks) {
		return fmt.Errorf("%w: what a container leaves could be forgotten: %w", ErrUnfit, err)
	}
	return nil
}

func (t *Turnover) startOne(ctx context.Context, care Care, id string, owners []string) error {
	s, unlock, err := t.take(ctx, id, care.Method, care.Scrub)
	if err != nil {
		return err
	}
	defer unlock()
	if s, err = t.Inventory.Begin(ctx, id, lease.Prepare, ""); err != nil {
		return err
	}
	outcome := inventory.Outcome{}
	defer func() { t.Inventory.Worked(id, outcome) }()
	p, err := t.prepare(ctx, care, s, owners)
	// No earlier: if the daemon ends before the vendor's step has, what that has left there is to be erased as well.
	t.Inventory.Prepared(id, p)
	if err != nil {
		outcome = failed(err)
		t.note(s, audit.Refused, err, audit.Entry{Pods: owners})
		return err
	}
	t.note(s, audit.Started, nil, audit.Entry{Pods: owners})
	outcome.Event, outcome.Tenants = lease.Start, owners
	return nil
}

// current makes sure that a device is there: it may have gone since the kubelet's question was looked at.
func current(s *inventory.Status) error {
	if !s.Present {
		return fmt.Errorf("%s: %w", s.Device.ID, device.ErrGone)
	}
	return nil
}

// failed is what has come of work that an error has ended.
func failed(err error) inventory.Outcome {
	if errors.Is(err, device.ErrForeign) { // the next look tells why the disk is not for pods
		return inventory.Outcome{Foreign: true}
	}
	if unlessBusy(err) == nil {
		return inventory.Outcome{}
	}
	return inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: err, Touched: errors.As(err, new(halfErased))}}
}

// halfErased is an error after which a disk may hold other things than before.
type halfErased struct{ error }

// Unwrap returns what went wrong.
func (e halfErased) Unwrap() error { return e.error }

// unlessBusy returns an error of which the device is the cause, and nil for one after which it is as it was.
func unlessBusy(err error) error {
	if errors.Is(err, ErrBusy) || errors.Is(err, device.ErrInUse) {
		return nil
	}
	return err
}

// prepare makes a device fit for a container of its pod. One that others may have open is only given its vendor's steps.
func (t *Turnover) prepare(ctx context.Context, care Care, s *inventory.Status, owners []string) (p device.Prepared, err error) {
	if care.Open {
		return p, t.begin(ctx, care, s)
	}
	if err := current(s); err != nil {
		return p, err
	}
	first := s.First(owners)
	who, err := patiently(ctx, func() (tenants, error) {
		if first { // no container of its pod was started with it, so whoever has it open is not of that pod
			return t.lookForNext(ctx, s, owners)
		}
		return t.look(ctx, s, owners, true)
	})
	switch {
	case err != nil:
		return p, err
	case who.others != "":
		return p, fmt.Errorf("%s: %w: %s", s.Device.ID, ErrBusy, who.others)
	case who.own: // another container of the pod works with it, as a sidecar does
		return p, nil
	}
	if p, err = t.renew(ctx, care, s, first); err != nil {
		return p, err
	}
	return p, t.begin(ctx, care, s)
}

// renew resets a device as its resource asks for. For the first container of a pod a disk is erased as well, if it holds
// what a pod of this node has left there; every other disk has to be blank.
func (t *Turnover) renew(ctx context.Context, care Care, s *inventory.Status, first bool) (p device.Prepared, err error) {
	w := device.Work{Tenant: s.Residue || !first && s.Same()} // the latter: the pod goes on with what it has written
	if care.AtStart {
		if w.Method, err = t.method(ctx, s, care.Method); err != nil {
			return p, err
		}
	}
	switch {
	case !s.Target.IsDisk():
	case first && s.Residue && care.AtStart && care.scrubs():
		w.Scrub, w.Blank = care.Scrub, s.LeftBlank // data that has appeared since then is nobody's here
	default:
		w.Blank = first || !w.Tenant
		w.Tenant = !w.Blank
	}
	return t.touch(ctx, s, w)
}
