// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/internal/liveness"
)

// holdersInterval is how often the kubelet is asked which devices its pods hold, while that matters. It allows 100
// questions a second, of all its clients together (kubernetes v1.36 pkg/kubelet/apis/podresources/constants.go).
const holdersInterval = 10 * time.Second

// After a pod has gone, or was given devices, metalplugd asks the kubelet soonRounds times, once in soonInterval. The devices of
// the pod are free once the kubelet's service, its newly written checkpoint and both again say so. Once the kubelet has
// listed a pod, its end needs no wait.
const (
	soonInterval = time.Second
	soonRounds   = 6
)

// askHolders asks the kubelet which devices its pods hold, as long as there is a device for which that matters. A pod
// holds such a device, or it is in the list only because a pod may hold it. Otherwise it sleeps.
func (d *daemon) askHolders(ctx context.Context, ready func()) error {
	ready()
	holders := kubelet.Holders{Socket: d.Config.Paths.PodResources, Dir: d.Config.Paths.DevicePlugins}
	var complaint string
	soon := 0 // rounds of questions that are soon to follow one another
	for {
		snapshot, changed := d.inventory.Snapshot()
		var next <-chan time.Time // nothing is to be asked
		if devices := doubtful(snapshot); len(devices) > 0 {
			answer, err := holders.Ask(ctx, devices)
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				complaint = ""
				d.control.SetHolders(holders.Pods())
				d.noteHolders(snapshot, holders.Pods())
				d.inventory.Confirm(answer)
			case err.Error() != complaint:
				complaint = err.Error()
				d.Log.Info("holders not known", "err", err)
			}
			interval := holdersInterval
			if soon > 0 || holders.Soon {
				soon, interval = max(soon-1, 0), soonInterval
			}
			next, changed = time.After(interval), nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-next:
		case <-d.pods:
			soon = soonRounds
		}
	}
}

// watchPods has the kubelet asked as soon as the cgroup of a pod is gone. Without cgroups to watch, it is asked now and
// then all the same.
func (d *daemon) watchPods(ctx context.Context, ready func()) error {
	if root := d.Config.Paths.Cgroup; root != "" {
		if err := cgroup.Watch(ctx, root, ready, func() { liveness.Poke(d.pods) }); err != nil {
			d.Log.Warn("pods not watched", "err", fmt.Errorf("%w: the kubelet is asked every %v instead", err, holdersInterval))
		}
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
			if device.Held() || device.Stale {
				ids = append(ids, device.Device.ID) // of a bundle too, whose members the kubelet does not know
			}
		}
	}
	return ids
}
