// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// job is work on one device. The work may affect other devices too. Until the job ends, no other job works on any of these
// devices.
type job struct {
	*Turnover
	*inventory.Current                    // state of the device; replaced by the newest one when the work begins
	policy             config.Resource    // determines the work on the device
	taken              []string           // IDs of the devices that this job has locked, beginning with the job's own device
	outcome            inventory.Outcome  // outcome of the work on this device
	asked              *inventory.Current // state of the device when the job was requested
}

// take waits until no other job works on the device or on the devices that its reset affects. take then returns a job that has
// locked all of these devices. The error is [inventory.ErrUnknownDevice], or [ErrBusy] if ctx ends first.
func (t *Turnover) take(ctx context.Context, id string) (*job, error) {
	s, err := t.Inventory.Current(ctx, id)
	if err != nil {
		return nil, err
	}
	j := &job{Turnover: t, Current: s, policy: t.policyFor(s.Taker), taken: []string{id}, asked: s}
	if s.Target != nil && j.method(false) != "" {
		for _, path := range s.Target.Siblings {
			if other := t.offeredAt(path); other != nil {
				j.taken = append(j.taken, other.Device.ID)
			}
		}
	}
	if j.Current, err = t.Inventory.Take(ctx, j.taken); err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w: another operation on the device is in progress: %w", id, ErrBusy, err)
	}
	return j, err
}

// offeredAt returns the device at a sysfs path, or nil. The device must be offered, or be a disk that lacks only the evidence
// that it is unused.
func (t *Turnover) offeredAt(sysPath string) *inventory.Status {
	snapshot, _ := t.Inventory.Snapshot()
	for s := range snapshot.All() {
		mayBeOffered := s.Resource != "" || s.Taker != "" && s.Blocked == ""
		if s.Present && mayBeOffered && s.Device.SysPath == sysPath {
			return s
		}
	}
	return nil
}

// method returns the reset method for the device, or an empty string if metalplug must not or cannot reset the device. The
// operator can order a reset even if the resource has the method "none".
func (j *job) method(byHand bool) string {
	switch method := j.policy.Reset.Method; {
	case method != config.None && method != config.Auto:
		return method
	case method == config.None && !byHand, j.Target == nil: // a group of devices has no automatic reset method
		return ""
	}
	return j.Target.Auto
}

// rule returns the parts of the resource's configuration that package lease uses.
func (j *job) rule() lease.Rule {
	return lease.Rule{Disk: j.Target.IsDisk(), Scrubs: j.policy.Reset.Scrubs(), AtStart: j.policy.Reset.AtStart()}
}

// begin notifies the inventory that work on the device is beginning. Until the job ends, the inventory assumes that this work
// causes all hardware changes. If the work may erase the last pod's data, begin first waits until an inspection has counted the
// writes to the disk. Without this number, the helper cannot notice that another process has written to the disk. The error is
// [ErrBusy] if the inspection takes longer than closeTimeout. For an errand, the error may be that of [job.checkUnchanged].
func (j *job) begin(ctx context.Context, event lease.Name, e errand) error {
	counted := true
	_ = retryUntil(ctx, func() (bool, error) {
		s, err := j.Inventory.Current(ctx, j.Device.ID)
		erases := err == nil && s.Residue && s.Target.IsDisk() && j.policy.Reset.Scrubs() && (!s.Held() || s.Hold == lease.Due)
		if counted = !erases || s.Written != nil; !counted {
			j.Inventory.Inspect(j.Device.ID)
		}
		return counted, nil
	})
	if !counted {
		return fmt.Errorf("%s: %w: the disk is being inspected", j.Device.ID, ErrBusy)
	}
	s, err := j.Inventory.Begin(ctx, j.Device.ID, event, e.order, func(now *inventory.Current) error {
		if event == lease.Prepare {
			return nil
		}
		return j.checkUnchanged(now, e.todo)
	})
	if err == nil {
		j.Current = s
	}
	return err
}

// checkUnchanged returns nil if the device has not changed since the job was requested. Otherwise, the error wraps errOutdated and
// describes the change. The parameter now is the newest state of the device. If the parameter todo is not empty, this work must
// still be pending.
func (j *job) checkUnchanged(now *inventory.Current, todo verdict.Todo) error {
	switch {
	case now.Held():
		return fmt.Errorf("%w: a pod holds the device", errOutdated)
	case !now.Present || !now.Target.Alike(j.asked.Target):
		return fmt.Errorf("%w: the hardware was removed or replaced", errOutdated)
	case now.CordonChanges != j.asked.CordonChanges:
		return fmt.Errorf("%w: the device was cordoned or uncordoned", errOutdated)
	case todo != verdict.Nothing && now.Todo != todo:
		return fmt.Errorf("%w: the work is no longer pending", errOutdated)
	}
	return nil
}

// fail sets the job's outcome after its work has ended with an error. The parameter e is the errand, or the zero value if a
// container is about to start. If ctx is cancelled, metalplugd is stopping, and will repeat the work on its next run.
func (j *job) fail(ctx context.Context, err error, e errand) {
	half := errors.As(err, new(halfErased))
	j.outcome = inventory.Outcome{Touched: half}
	if errors.Is(ctx.Err(), context.Canceled) || isBusy(err) || errors.Is(err, device.ErrUnproven) {
		return
	}
	j.outcome.Err, j.outcome.Written = err, j.writtenAfter(err)
	switch {
	case errors.Is(err, errUnsaved): // the order, if any, has been carried out
		j.outcome.Event = lease.Fail
	case errors.Is(err, device.ErrForeign): // the lease does not fail; the next inspection shows why pods cannot get the disk
		j.outcome.Foreign = true
	case errors.Is(err, device.ErrGone) && !half: // the lease does not fail; the next inspection shows whether the device is back
	case e.order != lease.NoOrder && errors.Is(err, ErrUnfit): // nothing was done
	case e.order != lease.NoOrder:
		j.outcome.Event, j.outcome.Order, j.outcome.Err = lease.Fail, e.order, fmt.Errorf("manual %s: %w", e.order, err)
	case e.todo == verdict.EraseAdopted && half: // the saved order remains, for the content after the failure
		j.outcome.Fingerprint, _ = j.Host.Touch.ReadFingerprint(ctx, *j.Target)
		j.outcome.Foreign = j.outcome.Fingerprint == ""
	case e.todo == verdict.EraseAdopted:
	case e.todo == verdict.CleanUp: // the clean-up has repeated the operator's order, if one had failed
		j.outcome.Event, j.outcome.Order = lease.Fail, j.Order
	default:
		j.outcome.Event = lease.Fail
	}
}

// writtenAfter returns the number of sectors written to the disk after a failed erasure, or nil if the helper may still be
// writing or the kernel does not count writes. The disk's content is unknown after such a failure. Only this number can then show
// that another process has written to the disk.
func (j *job) writtenAfter(err error) *uint64 {
	if n := sysfs.Written(&j.Host.Tree, j.Device.SysPath); n < sysfs.Uncounted && !errors.Is(err, device.ErrUnanswered) {
		return &n
	}
	return nil
}

// finish passes the outcome of the work to the inventory and unlocks the devices for the next job.
func (j *job) finish() { j.Inventory.End(j.taken, j.outcome) }
