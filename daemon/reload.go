// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/metalplug/metalplug/systemd"
)

// reloadLimit is the maximum time that a reload waits for slow devices to be inspected.
const reloadLimit = 10 * time.Second

// reload loads the configuration again. If the new configuration is invalid, the current one stays in effect.
func (d *daemon) reload(ctx context.Context) {
	next, err := d.Load()
	if err == nil {
		err = d.configMount.checkReplaced(d.Config.Paths.Proc)
	}
	if err == nil {
		err = CheckCDI(next)
	}
	if err != nil {
		d.control.Reloaded(nil, err)
		d.Log.Error("configuration not reloaded", "err", err)
		d.notify(systemd.Status(d.status()))
		return
	}
	current := d.config.Load()
	pending := current.Pending(next)
	next = current.Reloaded(next)
	if len(pending) > 0 {
		d.Log.Warn("configuration partly reloaded", "reason", strings.Join(pending, "; "))
	}
	// Stop endpoints before the new rules apply, because these rules may give the devices to claims.
	d.endpoints.apply(ctx, byPlugin(*current, next), func() {})
	// Store the configuration before the new rules apply. The new rules may cause a device to be cleaned up, and the cleanup uses
	// the stored configuration.
	d.config.Store(&next)
	// Wait for the inspections before new endpoints start, because the first device list from a new endpoint must be complete.
	select {
	case <-d.inventory.SetRules(next.Rules(), d.checkpointDevices()):
	case <-time.After(reloadLimit):
		d.Log.Warn("devices not inspected", "err", fmt.Errorf("some devices were not inspected with the new rules within %v", reloadLimit))
	case <-ctx.Done():
		return
	}
	d.specs.Set(next.Resources)
	d.specs.Update()
	d.endpoints.apply(ctx, next.Resources, func() {})
	d.control.Reloaded(pending, nil)
	d.notify(systemd.Status(d.status()))
	d.Log.Info("configuration reloaded")
}
