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

// askHelper asks the helper to do the given work on the device with the configured methods.
func (j *job) askHelper(ctx context.Context, todo lease.Work) (p device.Report, err error) {
	w := device.Work{Resource: j.Taker, Tenant: todo.Content == lease.OfTenant, ByHand: todo.ByHand}
	w.Blank = todo.Content == lease.Blank || todo.Content == lease.Unused
	if todo.Reset {
		w.Method = j.method(todo.ByHand && !todo.Erase)
	}
	if todo.Erase {
		w.Scrub = j.policy.Reset.Scrub
	}
	methods := slices.DeleteFunc([]string{w.Method, w.Scrub}, func(method string) bool { return method == "" })
	if j.Host.Touch.Prepare == nil || len(methods) == 0 && !w.Blank {
		return p, nil
	}
	if p, err = j.sendPrepare(ctx, w, todo, methods); err != nil {
		return p, fmt.Errorf("%s: %w", strings.TrimSpace(strings.Join(methods, ", ")+" "+j.Device.ID), err)
	}
	return p, nil
}

// stopLimit is how long metalplugd, when it stops, waits for an answer from a helper that is working on a device. The inventory
// must still have time to record the result.
const stopLimit = 8 * time.Second

// sendPrepare sends the request to the helper. Before an erasure, sendPrepare waits until the state file no longer contains the
// disk's fingerprint and number of writes. If metalplugd crashed during the erasure, they would not match the disk, and metalplugd
// would mistake the half-erased data for another machine's.
func (j *job) sendPrepare(ctx context.Context, w device.Work, todo lease.Work, methods []string) (p device.Report, err error) {
	if j.Target == nil || w.Scrub != "" && !j.Target.Disk {
		return p, fmt.Errorf("%w: devices of this kind do not support that", ErrUnfit)
	}
	target := *j.Target
	target.Fingerprint, target.Written = j.Fingerprint, j.Written
	target.Pods, _ = j.Pods()
	if w.Method != "" {
		target.Together = target.Siblings
		if err := j.beginSiblings(ctx, w.Scrub != ""); err != nil {
			return p, err
		}
	}
	began := time.Now()
	if todo.Waits() {
		if err = j.Inventory.WaitSaved(ctx); err != nil {
			err = fmt.Errorf("%w: the start of the erasure cannot be saved: %w", ErrUnfit, err)
		}
	}
	if err == nil {
		end, _ := ctx.Deadline()
		working, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
		defer cancel()
		defer context.AfterFunc(ctx, func() { time.AfterFunc(stopLimit, cancel) })()
		p, err = j.Host.Touch.Prepare(working, target, w)
	}
	switch {
	case err == nil && w.Scrub != "" && !p.Erased:
		err = errors.New("metalplug-reset has not verified the erasure")
	case err == nil && target.Disk && p.Appearance == "" && target.Appearance() != "":
		err = errors.New("another disk may be in this place: metalplug cannot prove that the disk is the same as before")
	}
	if err != nil && w.Scrub != "" && !errors.Is(err, ErrUnfit) && !isBusy(err) {
		err = halfErased{err}
	}
	j.count(w, methods, p, time.Since(began), err)
	return p, err
}

// count counts a request's resets and erasures and writes them to the audit log. A request that checks whether a disk is blank
// does not count.
func (j *job) count(w device.Work, methods []string, p device.Report, took time.Duration, err error) {
	if err != nil && len(methods) > 1 { // the helper's error names the method that failed
		methods = []string{strings.Join(methods, ", ")}
	}
	for _, method := range methods {
		event := audit.Reset
		if method == w.Scrub {
			event = audit.Erased
		}
		if j.Done != nil {
			j.Done(w.Resource, method, took, err)
		}
		j.note(j.Status, event, err, audit.Entry{Method: method, Verified: p.Done, Seconds: took.Seconds()})
	}
}

// beginSiblings begins work on the other devices that a reset affects. [Turnover.take] has locked these devices. The result is an
// error if a pod holds one of them, or if metalplug must not reset one of them.
func (j *job) beginSiblings(ctx context.Context, erases bool) error {
	for _, path := range j.Target.Siblings {
		other := j.offeredAt(path)
		if other == nil {
			return fmt.Errorf("%w: the operation would also affect %s, which is not offered", ErrUnfit, path)
		}
		id := other.Device.ID
		if !slices.Contains(j.taken, id) {
			return fmt.Errorf("%w: the operation would also affect %s, which has just appeared", ErrBusy, id)
		}
		_, err := j.Inventory.Begin(ctx, id, "", lease.NoOrder, func(now *inventory.Current) error {
			switch {
			case now.Cordon != nil:
				return fmt.Errorf("%w: the operation would also affect %s, which is cordoned", ErrBusy, id)
			case now.Held():
				return fmt.Errorf("%w: the operation would also affect %s, which a pod holds", ErrBusy, id)
			case j.policyFor(now.Taker).SharesUse():
				return fmt.Errorf("%w: the operation would also affect %s, which other pods or processes may be using", ErrUnfit, id)
			case erases && now.Reserved != "":
				return fmt.Errorf("%w: the operation would also affect %s: %s", ErrUnfit, id, now.Reserved)
			case erases && (now.Stale || now.Resource == ""):
				return fmt.Errorf("%w: the operation would also affect %s: %s", ErrUnfit, id, now.Reason)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
