// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/unit"
)

// cleanUpLimit returns the time limit for a reset and an erasure while no container is waiting. Before a container starts, the
// limit is much shorter ([startLimit]), because the kubelet is waiting. If the short limit is not enough, the work fails, and the
// daemon later repeats the work with the longer limit. The longer limit is enough to read a whole disk.
func (j *job) cleanUpLimit() time.Duration {
	if j.policy.Reset.AtRelease() {
		return max(j.policy.Reset.Timeout, time.Second)
	}
	return max(j.policy.Reset.Timeout, time.Hour)
}

// cleanUp prepares a device for the next pod after the last pod has ended. cleanUp does nothing and returns nil if a new pod
// already has the device, or if the device must not be cleaned up now. cleanUp also does nothing if an operator's order has
// failed, and only the operator may repeat this order. After a reload, the device may belong to another resource. cleanUp then does
// the work that this resource configures, because the helpers refuse any other work.
func (j *job) cleanUp(ctx context.Context) error {
	if j.Barred != "" && !j.policy.ClearedAtRelease() && j.Taker == j.Resource || !j.repeatsOrder() {
		return nil
	}
	if !j.policy.SharesUse() {
		if err := j.checkUnused(ctx); err != nil {
			return err
		}
	}
	switch err := j.begin(ctx, lease.Clear, lease.NoOrder); {
	case errors.Is(err, lease.ErrEvent), err == nil && j.Cordon != nil: // a new pod has the device, or it is cordoned now
		return nil
	case err != nil:
		return err
	}
	j.outcome.Event = lease.Cleared
	err := j.restore(ctx)
	if err != nil {
		j.fail(ctx, err, j.Order) // the work included the operator's order, if there was one
	}
	return err
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

// restore resets and erases a released device as configured, and then runs the vendor unit. If earlier work on the device failed,
// restore repeats that work.
func (j *job) restore(ctx context.Context) error {
	if !j.policy.SharesUse() && (j.policy.Reset.AtRelease() || j.Failure != "") {
		if err := j.clear(ctx, j.cleanUpLimit(), j.CleanUp(j.rule())); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(ctx, unit.MaxTimeout) // no container is waiting
	defer cancel()
	return j.unit(limited, unit.Release, j.policy.Units.Release)
}

// clear asks the helper to work on a device that has no tenant. An erasure must be recorded in the state file before metalplugd
// reports it. If metalplugd crashed without this record, its next run would mistake new data on the disk for a pod's data and
// erase the new data. The last work on a disk may have failed because the state file could not be written. After a failure, clear
// therefore waits for the state file even if it has not erased the disk.
func (j *job) clear(ctx context.Context, limit time.Duration, todo lease.Work) error {
	limited, cancel := context.WithTimeout(ctx, limit+device.AnswerTime)
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
