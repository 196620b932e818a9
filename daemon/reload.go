// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/metalplug/metalplug/systemd"
)

// reloadLimit is the maximum time that a reload waits for slow devices.
const reloadLimit = 10 * time.Second

// reload loads the configuration again. An invalid configuration changes nothing.
func (d *daemon) reload(ctx context.Context) {
	next, err := d.Load()
	if err == nil {
		err = d.unbound(next)
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
		d.Log.Warn("configuration partly reloaded", "err", strings.Join(pending, "; "))
	}
	// Endpoints are stopped before the new rules apply, because these may let claims have the devices.
	d.endpoints.apply(ctx, byPlugin(*current, next), func() {})
	// The configuration is stored before the new rules apply, because these may require that a device is cleaned up.
	d.config.Store(&next)
	// The first list that an endpoint sends must be complete.
	select {
	case <-d.inventory.SetRules(next.Rules(), d.remembered()):
	case <-time.After(reloadLimit):
		d.Log.Warn("devices not inspected", "err", fmt.Errorf("some were not inspected with the new rules within %v", reloadLimit))
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
