// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/unit"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// errand describes work on a device that no tenant holds. [job.clear] does each errand in the same way.
type errand struct {
	todo  verdict.Todo  // the pending work, or empty if the operator waits for the result
	order lease.Order   // the operator's order if the operator waits for the result; otherwise empty
	scrub string        // method for an erasure that the operator ordered, or empty
	limit time.Duration // limits the request to the helper
}

// cleanUpLimit returns the time limit for a reset and an erasure while no container is waiting. Before a container starts, the
// limit is much shorter ([startLimit]), because the kubelet is waiting. If the short limit is not enough, the work fails, and the
// daemon later repeats the work with the longer limit. The longer limit is enough to read a whole disk.
func (j *job) cleanUpLimit() time.Duration {
	if j.policy.Reset.AtRelease() {
		return max(j.policy.Reset.Timeout, time.Second)
	}
	return max(j.policy.Reset.Timeout, time.Hour)
}

// cleanUp prepares a device for the next pod after the last pod has ended. cleanUp does nothing and returns nil if the device must
// not be cleaned up now. cleanUp also does nothing if an operator's order has failed, and only the operator may repeat this order.
// After a reload, the device may belong to another resource. cleanUp then does the work that this resource configures, because the
// helpers refuse any other work.
func (j *job) cleanUp(ctx context.Context) error {
	if j.Barred != "" && !j.policy.ClearedAtRelease() && j.Taker == j.Resource || !j.repeatsOrder() {
		return nil
	}
	return j.clearPending(ctx, errand{todo: verdict.CleanUp, limit: j.cleanUpLimit()})
}

// repeatsOrder reports whether the clean-up of a released device repeats the operator's failed order. If no order has failed,
// repeatsOrder returns true.
func (j *job) repeatsOrder() bool {
	switch j.Order {
	case lease.Reset:
		return !j.policy.SharesUse() && (j.policy.Reset.Method != config.None || j.policy.Reset.Scrubs())
	case lease.Erase:
		return !j.policy.SharesUse() && j.policy.Reset.Scrubs()
	}
	return true
}

// clearPending does pending work on a device. The error is errOutdated if the work is no longer pending.
func (j *job) clearPending(ctx context.Context, e errand) error {
	if !j.policy.SharesUse() {
		if err := j.checkUnused(ctx); err != nil {
			return err
		}
	}
	if err := j.begin(ctx, lease.Clear, e); err != nil {
		return err
	}
	return j.clear(ctx, e)
}

// clear does an errand that [job.begin] has begun, and sets the job's outcome. clear resets or erases the device. After a pod has
// ended, clear then runs the vendor unit. If earlier work on the device failed, the clean-up repeats that work. An order of the
// operator does not replace the vendor unit, so the clean-up stays pending. Only an order that the operator waits for clears the
// device's hardware faults.
func (j *job) clear(ctx context.Context, e errand) (err error) {
	cleanUp := e.todo == verdict.CleanUp
	if !cleanUp || !j.policy.SharesUse() && (j.policy.Reset.AtRelease() || j.Failure != "") {
		err = j.resetOrErase(ctx, e)
	}
	if err == nil && cleanUp {
		err = j.unit(ctx, unit.Release, j.policy.Units.Release)
	}
	if err == nil && e.order != lease.NoOrder {
		j.Inventory.Recovered(j.Device.ID)
	}
	// A reset alone is not enough if the resource erases disks or runs a vendor unit after a pod has ended.
	enough := !j.Used || j.policy.Units.Release == "" && (e.scrub != "" || !j.policy.Reset.AtRelease() || !j.policy.Reset.Scrubs())
	// After a failed erasure, a reset alone is not enough.
	mended := e.scrub != "" || j.Order == lease.Reset
	switch {
	case err != nil:
		j.fail(ctx, err, e)
	case cleanUp, enough && (mended || j.Order == lease.NoOrder):
		j.outcome.Event = lease.Cleared
	case mended:
		j.outcome.Event = lease.Mended
	}
	return err
}

// resetOrErase asks the helper to do an errand. An order that the operator waits for applies to any content. An order that a
// clean-up repeats does not apply if another process has since written to the disk. The order to erase an adopted disk applies only
// to the content that the operator adopted.
//
// An erasure must be recorded in the state file before metalplugd reports it. If metalplugd crashed without this record, its next
// run would mistake new data on the disk for a pod's data and erase the new data. The last work on a disk may have failed because
// the state file could not be written. After a failure, resetOrErase therefore waits for the state file even if it has not erased
// the disk.
func (j *job) resetOrErase(ctx context.Context, e errand) error {
	todo := j.CleanUp(j.rule())
	switch {
	case e.todo == verdict.EraseAdopted:
		todo, j.Fingerprint = j.Ordered(lease.Erase), j.Evidence.Fingerprint
	case e.order == lease.Reset && j.method(true) == "":
		return fmt.Errorf("%s: %w: no reset method of the class applies now: name a method in [resource.reset]", j.Device.ID, ErrUnfit)
	case e.order != lease.NoOrder:
		todo, j.Fingerprint, j.Written = j.Ordered(e.order), "", nil
	case todo.ByHand:
		j.Fingerprint = ""
	}
	j.policy.Reset.Scrub = cmp.Or(e.scrub, j.policy.Reset.Scrub)
	limited, cancel := context.WithTimeout(ctx, e.limit+device.AnswerTime)
	defer cancel()
	p, err := j.askHelper(limited, todo)
	if err != nil {
		return err
	}
	j.Inventory.Prepared(j.Device.ID, p)
	if todo.Waits() || j.Failure != "" && j.Target.IsDisk() {
		if err := j.Inventory.WaitSaved(ctx); err != nil {
			return fmt.Errorf("%w: %w", errUnsaved, err)
		}
	}
	return nil
}
