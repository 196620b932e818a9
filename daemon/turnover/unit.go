// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/unit"
)

// unitLimit is how long a unit may take that no container waits for. The unit's own limit (TimeoutStartSec=) has to be less.
const unitLimit = unit.MaxTimeout

// Step is one run of a vendor's unit for a device.
type Step struct {
	Resource string
	Stage    string // unit.Init, unit.Start or unit.Release
	Unit     string // the template that the configuration names
	Device   string // ID
}

// Units are the names of a vendor's units between two pods, or empty.
type Units struct {
	Start   string // before each container starts, after the reset and the erasure
	Release string // after the last pod, after the reset and the erasure
}

// unit runs a vendor's unit, unless its name is empty.
func (t *Turnover) unit(ctx context.Context, s *inventory.Status, stage, template string) error {
	if template == "" || t.Unit == nil {
		return nil
	}
	began := time.Now()
	err := t.Unit(ctx, Step{Resource: s.Resource, Stage: stage, Unit: template, Device: s.Device.ID})
	t.note(s, audit.Stepped, err, audit.Entry{Method: template, Seconds: time.Since(began).Seconds()})
	if err != nil {
		return fmt.Errorf("%s: %w", s.Device.ID, err)
	}
	return nil
}

// initialise runs the unit of a device that precedes its offer.
func (t *Turnover) initialise(ctx context.Context, s *inventory.Status) error {
	id := s.Device.ID
	s, err := t.Inventory.Begin(ctx, id, lease.Clear, "being initialised")
	if err != nil {
		return err
	}
	defer t.Inventory.Worked(id, inventory.Outcome{})
	limited, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	err = t.unit(limited, s, unit.Init, s.Init)
	if ctx.Err() != nil { // the daemon stops, and the next one does it again
		return ctx.Err()
	}
	t.Inventory.Initialised(id, s.Init, err)
	return err
}
