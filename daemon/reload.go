// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/metalplug/metalplug/systemd"
)

// reloadLimit bounds how long a reload waits for devices that are slow to answer.
const reloadLimit = 10 * time.Second

// reload reads the configuration again. A bad one changes nothing.
func (d *daemon) reload(ctx context.Context) {
	if d.Load == nil {
		return
	}
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
	d.config.Store(&next) // before the rules, by which a device may have to be cleared of which the old ones say nothing
	// The first list that an endpoint sends must be complete.
	select {
	case <-d.inventory.SetRules(next.Rules(), d.remembered()):
	case <-time.After(reloadLimit):
		d.Log.Warn("devices slow to answer", "err", fmt.Errorf("some have not been looked at by the new rules after %v", reloadLimit))
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
