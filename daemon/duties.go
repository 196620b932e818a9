// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// After a hint at another plugin, its registration, or that the kubelet notices its end, may take a while: what the kubelet
// counts is compared after the first of these pauses, and after each twice as long.
const (
	firstComparison = time.Second
	// stirComparison is the first pause after a plugin has made its socket: most register at once.
	stirComparison = 100 * time.Millisecond
	// endComparison is the first pause after a plugin has ended: the kubelet notices that at once.
	endComparison  = 50 * time.Millisecond
	lastComparison = time.Minute
	// ownComparison is the last pause where all that has happened is a registration of ours: the kubelet has milliseconds of
	// work with that.
	ownComparison = 4 * time.Second
)

// watchRivals has each endpoint hear what the kubelet counts of its resource, as long as another plugin may have to do with
// that. Otherwise it sleeps.
func (d *daemon) watchRivals(ctx context.Context, ready func()) error {
	ready()
	var pause, last time.Duration // before the next comparison, 0: there is none; and before the last that follows the hint
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.watch.Doubts():
			if last = max(last, ownComparison); d.watch.Stirred() {
				last = lastComparison
				d.peers.Live() // and so a new one is watched
				pause = stirComparison
				break
			}
			if pause > 0 && pause <= firstComparison {
				continue
			}
			pause = firstComparison
		case <-d.peers.Changed:
			d.watch.Hint() // for those that are held back
			pause, last = endComparison, lastComparison
		case <-timer.C:
			if pause = d.compare(ctx, pause, last); pause == 0 {
				last = 0
			}
		}
		if pause > 0 {
			timer.Reset(pause)
		}
	}
}

// compare compares what the kubelet counts with what is offered, and returns the pause until it is to be done again; 0:
// never. After another plugin has stirred, a kubelet that does not answer is asked until it does: it allows all its clients
// together some questions a second, and another plugin that is known may end meanwhile. So is one beside which another plugin
// is: if that has the same resource with the same devices, it shows only once it has ended, which no event tells of if it is
// killed.
func (d *daemon) compare(ctx context.Context, pause, last time.Duration) time.Duration {
	counted, err := plugin.Allocatable(ctx, d.Config.Paths.PodResources)
	if err == nil {
		if again := d.endpoints.compare(counted); again > 0 {
			return again
		}
	}
	switch {
	case pause < last:
		return min(2*pause, last)
	case d.watch.Others() || err != nil && last == lastComparison:
		return lastComparison
	}
	return 0
}

// countedOf asks the kubelet which devices of a resource it counts as healthy. A kubelet without the service counts none.
func (d *daemon) countedOf(ctx context.Context, resource string) ([]string, error) {
	if _, err := os.Lstat(d.Config.Paths.PodResources); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	counted, err := plugin.Allocatable(ctx, d.Config.Paths.PodResources)
	if errors.Is(err, plugin.ErrNotCounted) {
		return nil, nil
	}
	return counted[resource], err
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
	pending := d.Config.Pending(next)
	if len(pending) > 0 {
		d.Log.Warn("configuration partly reloaded", "err", strings.Join(pending, "; "))
	}
	// Before the rules: by new rules a device may have to be cleared of which the old care says nothing.
	d.turnover.Set(careOf(next.Resources))
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
	d.Config.Resources, d.Config.Files = next.Resources, next.Files
	d.tellReload(pending, nil)
	d.notify(d.Notifier.Status(d.status()))
	d.Log.Info("configuration reloaded")
}

// tellReload has whoever asks, or follows the events, hear how a reload has ended, and what of it waits for the next start.
func (d *daemon) tellReload(pending []string, err error) {
	d.said.reloaded(d.Config, pending, err)
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
	loops := []func(context.Context) error{d.inventory.Alive, d.watch.Alive, d.endpoints.alive}
	errs := make([]error, len(loops))
	var asking sync.WaitGroup
	for i, alive := range loops {
		asking.Go(func() { errs[i] = alive(ctx) })
	}
	asking.Wait()
	return errors.Join(errs...)
}
