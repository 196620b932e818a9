// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// holdersInterval is how often the kubelet is asked which devices its pods hold, while that matters. It allows 100
// questions a second, of all its clients together (kubernetes v1.36 pkg/kubelet/apis/podresources/constants.go).
const holdersInterval = 10 * time.Second

// After a pod has gone, the kubelet is asked more often for a while: what its service says, what its checkpoint says once
// it was written anew, and both once more make the devices of the pod free.
const (
	goneInterval = time.Second
	goneRounds   = 6
	// givenRounds is how often after a container was given devices: once the kubelet has listed its pod, it need not be
	// waited for when that is gone again.
	givenRounds = 3
)

// reloadLimit bounds how long a reload waits for devices that are slow to answer.
const reloadLimit = 10 * time.Second

// askHolders asks the kubelet which devices its pods hold, as long as there is a device of which that has to be known:
// one that a pod holds, or one that is in the offer only because a pod may hold it. Otherwise it sleeps.
func (d *daemon) askHolders(ctx context.Context, ready func()) error {
	ready()
	holders := plugin.Holders{Socket: d.Config.Paths.PodResources, Dir: d.Config.Paths.DevicePlugins}
	var complaint string
	soon := 0 // rounds of questions that are soon to follow one another
	for {
		snapshot, changed := d.inventory.Snapshot()
		devices := doubtful(snapshot)
		if len(devices) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-d.podGone: // it had none of our devices
			case <-d.podGiven:
				soon = givenRounds
			}
			continue
		}
		asked := time.Now()
		holdings, err := holders.Ask(ctx, devices)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			complaint = ""
			d.said.pods(holders.Pods())
			d.noteHolders(snapshot, holders.Pods())
			d.inventory.Confirm(asked, holdings)
		case err.Error() != complaint:
			complaint = err.Error()
			d.Log.Info("holders not known", "err", err)
		}
		interval := holdersInterval
		if soon > 0 || holders.Soon {
			soon = max(soon-1, 0)
			interval = goneInterval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		case <-d.podGone:
			soon = goneRounds
		case <-d.podGiven:
			soon = max(soon, givenRounds)
		}
	}
}

// watchPods has the kubelet asked as soon as the cgroup of a pod is gone. Without cgroups to watch, it is asked now and
// then all the same.
func (d *daemon) watchPods(ctx context.Context, ready func()) error {
	watch := cgroup.Watch{Root: d.Config.Paths.Cgroup, Gone: func(string) {
		select {
		case d.podGone <- struct{}{}:
		default:
		}
	}}
	if err := watch.Run(ctx, ready); err != nil {
		d.Log.Warn("pods not watched", "err", fmt.Errorf("%w: the kubelet is asked every %v instead", err, holdersInterval))
	}
	ready()
	<-ctx.Done()
	return nil
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
		err = d.unbound(next)
	}
	if err != nil {
		d.tellReload(nil, err)
		d.Log.Error("configuration not reloaded", "err", err)
		d.notify(d.Notifier.Status(d.status()))
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
	d.endpoints.apply(next.Resources, func() {})
	d.tellReload(pending, nil)
	d.notify(d.Notifier.Status(d.status()))
	d.Log.Info("configuration reloaded")
}

// tellReload has whoever asks, or follows the events, hear how a reload has ended, and what of it waits for the next start.
func (d *daemon) tellReload(pending []string, err error) {
	d.said.reloaded(pending, err)
	d.control.Changed()
}

// reportStatus keeps the status line of the service up to date. A reload sends it by itself, so that it is there when
// systemctl returns.
func (d *daemon) reportStatus(ctx context.Context, ready func()) error {
	ready()
	last := ""
	for {
		_, changed := d.inventory.Snapshot()
		if line := d.status(); line != last {
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

// status is the status line as it is now.
func (d *daemon) status() string {
	snapshot, _ := d.inventory.Snapshot()
	connected, all := d.endpoints.registered()
	return statusLine(snapshot, connected, all, d.configuration().Problem)
}

// statusLine begins with why a configuration was refused, until one is taken.
func statusLine(s *inventory.Snapshot, connected, all int, refused string) string {
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
	line := fmt.Sprintf("%d devices healthy, %d unhealthy, %d seen and not offered; kubelet connected to %d of %d resources",
		healthy, unhealthy, len(s.Others), connected, all)
	if refused == "" {
		return line
	}
	first, _, _ := strings.Cut(refused, "\n")
	return "the configuration was not reloaded: " + first + "; " + line
}

// pingWatchdog tells the service manager that the daemon is alive, as long as all its loops go round: the events of udev, the
// inventory, the watch of the kubelet's directory, and each endpoint.
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
		// Asked again at once: who only was late is heard of before the service manager has waited for two intervals, and who
		// stands still is named before that.
		for err := d.alive(ctx, interval/2); err != nil; err = d.alive(ctx, interval/2) {
			if ctx.Err() != nil {
				return nil
			}
			d.Log.Error("no progress", "err", err)
		}
		d.notify(d.Notifier.Alive())
	}
}

// alive asks all loops at once. The error says which of them has not answered in time.
func (d *daemon) alive(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	loops := []func(context.Context) error{d.inventory.Alive, d.watch.Alive}
	for _, endpoint := range d.endpoints.all() {
		loops = append(loops, endpoint.Alive)
	}
	errs := make([]error, len(loops))
	var asking sync.WaitGroup
	for i, alive := range loops {
		asking.Go(func() { errs[i] = alive(ctx) })
	}
	asking.Wait()
	return errors.Join(errs...)
}
