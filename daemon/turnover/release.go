// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"errors"
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
func (t *Turnover) cleanUp(ctx context.Context, s *inventory.Status) error {
	id, care := s.Device.ID, t.careOf(s)
	if s.Barred != "" && !care.clears() || !care.mends(s.Order) {
		return nil
	}
	if !care.Open {
		if err := t.left(ctx, s); err != nil {
			return err
		}
	}
	s, err := t.Inventory.Begin(ctx, id, lease.Clear, "")
	if stale := new(lease.ErrEvent); errors.As(err, &stale) { // a pod has come
		return nil
	} else if err != nil {
		return err
	}
	outcome := inventory.Outcome{Event: lease.Cleared}
	defer func() { t.Inventory.Worked(id, outcome) }()
	err = t.restore(ctx, care, s)
	switch {
	case err == nil:
	case ctx.Err() != nil: // the daemon stops, and the next one does it again
		outcome = inventory.Outcome{}
	case unlessBusy(err) == nil:
		outcome = inventory.Outcome{}
		t.Inventory.Lingers(id, err.Error())
	default:
		outcome = failed(err, s.Order) // the work made good for the operator's order as well
	}
	return err
}

// restore resets and erases a released device as its resource asks, and then runs the vendor's unit. It makes good for work
// that failed before.
func (t *Turnover) restore(ctx context.Context, care Care, s *inventory.Status) error {
	var p device.Prepared
	if !care.Open && (care.AtRelease || s.Failure != "") {
		limited, cancel := context.WithTimeout(ctx, care.cleanUpLimit()+device.AnswerTime)
		defer cancel()
		var err error
		if p, err = t.touch(limited, care, s, s.CleanUp(care.rule(s))); err != nil {
			return err
		}
		t.Inventory.Prepared(s.Device.ID, p)
	}
	// The failure of a disk may be only that the state file could not take its erasure.
	if p.Erased || s.Failure != "" && s.Target.IsDisk() {
		if err := t.keptErased(ctx); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	return t.unit(limited, s, unit.Release, care.Units.Release)
}
