// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// holdersInterval is how often the kubelet is asked which devices its pods hold, while that matters. It allows 100
// questions a second, of all its clients together (kubernetes v1.36 pkg/kubelet/apis/podresources/constants.go).
const holdersInterval = 10 * time.Second

// reloadLimit bounds how long a reload waits for devices that are slow to answer.
const reloadLimit = 10 * time.Second

// askHolders asks the kubelet which devices its pods hold, as long as there is a device of which that has to be known:
// one that a pod holds, or one that is in the offer only because a pod may hold it. Otherwise it sleeps.
func (d *daemon) askHolders(ctx context.Context, ready func()) error {
	ready()
	holders := plugin.Holders{Socket: d.Config.Paths.PodResources, Dir: d.Config.Paths.DevicePlugins}
	var complaint string
	for {
		snapshot, changed := d.inventory.Snapshot()
		devices := doubtful(snapshot)
		if len(devices) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
			continue
		}
		holdings, err := holders.Ask(ctx, devices)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			complaint = ""
			d.inventory.Confirm(holdings)
		case err.Error() != complaint:
			complaint = err.Error()
			d.Log.Info("holders not known", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(holdersInterval):
		}
	}
}

// doubtful lists the devices of which it has to be known whether a pod holds them.
func doubtful(s *inventory.Snapshot) []string {
	var ids []string
	for _, offer := range s.Offers {
		for _, device := range offer.Devices {
			if device.Held || device.Stale {
				ids = append(ids, device.Device.ID)
			}
		}
	}
	return ids
}

// reloads reads the configuration anew at each signal. A bad one changes nothing.
func (d *daemon) reloads(ctx context.Context, ready func()) error {
	ready()
	select { // a signal before that waits
	case <-ctx.Done():
		return nil
	case <-d.endpoints.begun:
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.Reload:
			d.notify(d.Notifier.Reloading())
			d.reload(ctx)
			d.notify(d.Notifier.Ready())
		}
	}
}

func (d *daemon) reload(ctx context.Context) {
	if d.Load == nil {
		return
	}
	next, err := d.Load()
	if err == nil {
		err = d.sharesKept(next)
	}
	if err != nil {
		d.Log.Error("configuration not reloaded", "err", err)
		d.notify(d.Notifier.Status("the configuration was not reloaded: " + firstLine(err)))
		return
	}
	if next.Paths != d.Config.Paths || next.Hardware != d.Config.Hardware {
		d.Log.Warn("configuration partly reloaded",
			"err", fmt.Errorf("what changed in [paths] and [hardware] holds from the next start"))
	}
	// The first list that an endpoint sends must be complete.
	select {
	case <-d.inventory.SetRules(next.Rules(), d.remembered()):
	case <-time.After(reloadLimit):
		d.Log.Warn("devices slow to answer", "err", fmt.Errorf("some have not been looked at by the new rules after %v", reloadLimit))
	case <-ctx.Done():
		return
	}
	d.specs.Set(described(next.Resources))
	d.specs.Update()
	d.endpoints.apply(next.Resources, func() {})
	d.Config.Resources = next.Resources
	d.Log.Info("configuration reloaded")
}

// sharesKept refuses another number of shares while a pod holds one: it would be under an ID that is no more.
func (d *daemon) sharesKept(next config.Config) error {
	snapshot, _ := d.inventory.Snapshot()
	for _, r := range next.Resources {
		i := slices.IndexFunc(d.Config.Resources, func(old config.Resource) bool { return old.Name == r.Name })
		if i < 0 || d.Config.Resources[i].Shares == r.Shares {
			continue
		}
		for _, device := range snapshot.Offer(r.Name).Devices {
			if device.Held {
				return fmt.Errorf("resource %s: shares = %d: pods hold its devices by the IDs of %d shares: end them first",
					r.Name, r.Shares, d.Config.Resources[i].Shares)
			}
		}
	}
	return nil
}

// reportStatus keeps the status line of the service up to date.
func (d *daemon) reportStatus(ctx context.Context, ready func()) error {
	ready()
	last := ""
	for {
		snapshot, changed := d.inventory.Snapshot()
		connected, all := d.endpoints.registered()
		if line := statusLine(snapshot, connected, all); line != last {
			d.notify(d.Notifier.Status(line))
			last = line
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-d.endpoints.changed:
		}
	}
}

func statusLine(s *inventory.Snapshot, connected, all int) string {
	healthy, unhealthy := 0, 0
	for _, offer := range s.Offers {
		for _, device := range offer.Devices {
			if device.Healthy {
				healthy++
			} else {
				unhealthy++
			}
		}
	}
	return fmt.Sprintf("%d devices healthy, %d unhealthy, %d seen and not offered; kubelet connected to %d of %d resources",
		healthy, unhealthy, len(s.Others), connected, all)
}

// pingWatchdog tells the service manager that the daemon is alive, as long as the inventory answers.
func (d *daemon) pingWatchdog(ctx context.Context, ready func()) error {
	ready()
	interval, err := d.Notifier.WatchdogInterval()
	if err != nil {
		return err
	}
	if interval == 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if d.alive(ctx, interval) {
			d.notify(d.Notifier.Alive())
		}
	}
}

func (d *daemon) alive(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return d.inventory.Alive(ctx) == nil
}

// firstLine is what of an error fits on the status line.
func firstLine(err error) string {
	for i, r := range err.Error() {
		if r == '\n' {
			return err.Error()[:i]
		}
	}
	return err.Error()
}
