// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/unit"
)

// cleanUpLimit returns how long a reset and an erasure may take that no container waits for. The time of a resource that
// erases before a start is bounded by the kubelet's. After a failed one there is time to read a whole disk.
func (c Care) cleanUpLimit() time.Duration {
	if c.AtRelease {
		return max(c.Timeout, time.Second)
	}
	return max(c.Timeout, time.Hour)
}

// cleanUp makes a device fit for the next pod after the last one has gone. It returns nil also if a new pod has come in the
// meantime, if a reload is under way, or if the operator has to repeat an order that failed.
func (j *job) cleanUp(ctx context.Context) error {
	if j.Barred != "" && !j.care.clears() || !j.care.mends(j.Order) {
		return nil
	}
	if !j.care.Open {
		if err := j.left(ctx); err != nil {
			return err
		}
	}
	err := j.begin(ctx, lease.Clear, "")
	if stale := new(lease.ErrEvent); errors.As(err, &stale) { // a pod has come
		return nil
	} else if err != nil {
		return err
	}
	j.outcome.Event = lease.Cleared
	err = j.restore(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // the daemon stops, and the next one does it again
		j.outcome = inventory.Outcome{}
		return err
	case unlessBusy(err) == nil:
		j.Inventory.Delayed(j.Device.ID, err.Error())
	}
	j.fail(err, j.Order) // the work made good for the operator's order as well
	return err
}

// restore resets and erases a released device as its resource asks, and then runs the vendor's unit. It makes good for work
// that failed before.
func (j *job) restore(ctx context.Context) error {
	if !j.care.Open && (j.care.AtRelease || j.Failure != "") {
		if err := j.clear(ctx, j.care.cleanUpLimit(), j.CleanUp(j.rule())); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	return j.unit(limited, unit.Release, j.care.Units.Release)
}

// clear has the helper work on a device that no tenant has. The state file must have an erasure before it is reported. After a
// crash, later data on the disk would otherwise count as a pod's and be lost. The failure of a disk may be only that the state
// file could not take its erasure.
func (j *job) clear(ctx context.Context, limit time.Duration, todo lease.Work) error {
	limited, cancel := context.WithTimeout(ctx, limit+device.AnswerTime)
	defer cancel()
	p, err := j.touch(limited, todo)
	if err != nil {
		return err
	}
	j.Inventory.Prepared(j.Device.ID, p)
	if !p.Erased && (j.Failure == "" || !j.Target.IsDisk()) {
		return nil
	}
	if err := j.Inventory.Kept(ctx); err != nil {
		return fmt.Errorf("%w: %w", errUnkept, err)
	}
	return nil
}
