// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/unit"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// unit runs the vendor unit that is configured for a stage by the resource whose work the job does. After a reload, another
// resource may still offer the device. unit does nothing if the unit's name is empty.
func (j *job) unit(ctx context.Context, stage, template string) error {
	if template == "" || j.Unit == nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, unit.MaxTimeout)
	defer cancel()
	began := time.Now()
	err := j.Unit(limited, j.policy.Name, stage, j.Device.ID)
	j.note(j.Status, audit.Stepped, err, audit.Entry{Method: template, Seconds: time.Since(began).Seconds()})
	if err != nil {
		return fmt.Errorf("%s: %w", j.Device.ID, err)
	}
	return nil
}

// initialise runs the vendor's init unit, which must run before the device is offered.
func (j *job) initialise(ctx context.Context) error {
	if err := j.begin(ctx, lease.Clear, errand{todo: verdict.Initialise}); err != nil {
		return err
	}
	err := j.unit(ctx, unit.Init, j.Init)
	if ctx.Err() != nil { // metalplugd is stopping, and its next run starts the unit again
		return ctx.Err()
	}
	j.Inventory.Initialised(j.Device.ID, j.Init, err)
	return err
}
