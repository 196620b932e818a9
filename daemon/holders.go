// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/internal/liveness"
)

// holdersInterval is the interval at which askHolders queries the kubelet. The kubelet allows 100 queries per second from all its
// clients together (kubernetes v1.36 pkg/kubelet/apis/podresources/constants.go).
const holdersInterval = 10 * time.Second

// After a pod has ended or received devices, metalplugd queries the kubelet soonRounds times, once every soonInterval. A device
// is free if neither two answers in a row nor the kubelet's newest checkpoint name it. For a pod that the kubelet had listed
// before the pod ended, soonRounds queries are enough.
const (
	soonInterval = time.Second
	soonRounds   = 6
)

// askHolders queries the kubelet for the devices that its pods hold. askHolders repeats the query while the inventory contains a
// device that a pod holds or may hold. If there is no such device, askHolders waits for the inventory to change.
func (d *daemon) askHolders(ctx context.Context, ready func()) error {
	ready()
	holders := kubelet.Holders{Socket: d.Config.Paths.PodResources, Dir: d.Config.Paths.DevicePlugins}
	var complaint string
	soon := 0 // number of remaining queries at the short interval
	for {
		snapshot, changed := d.inventory.Snapshot()
		var next <-chan time.Time // nil if no query is needed
		if devices := possiblyHeld(snapshot); len(devices) > 0 {
			before := holders.Pods
			answer, err := holders.Ask(ctx, devices)
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				complaint = ""
				d.control.SetHolders(holders.Pods)
				d.noteHolders(snapshot, before, holders.Pods)
				d.inventory.Confirm(answer)
			case err.Error() != complaint:
				complaint = err.Error()
				d.Log.Info("pod resources unavailable", "err", err)
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

// watchPods makes askHolders query the kubelet when a pod's cgroup is removed. If cgroups cannot be watched, askHolders queries
// the kubelet only at intervals.
func (d *daemon) watchPods(ctx context.Context, ready func()) error {
	if root := d.Config.Paths.Cgroup; root != "" {
		if err := cgroup.Watch(ctx, root, ready, func() { liveness.Poke(d.pods) }); err != nil {
			d.Log.Warn("pods not watched", "err", fmt.Errorf("%w: metalplugd queries the kubelet every %v instead", err, holdersInterval))
		}
	}
	ready()
	<-ctx.Done()
	return nil
}

// possiblyHeld returns the IDs of the devices that a pod holds or may hold.
func possiblyHeld(s *inventory.Snapshot) []string {
	var ids []string
	for _, offer := range s.Offers {
		for _, device := range offer.Devices {
			if (device.Held() || device.Stale) && len(device.Claims) == 0 {
				// The ID may belong to a bundle, because the kubelet knows only bundles and not their members.
				ids = append(ids, device.Device.ID)
			}
		}
	}
	return ids
}

// auditEntry returns an audit entry for an event that concerns a device.
func auditEntry(s *inventory.Status, event audit.Event) audit.Entry {
	return audit.Entry{Event: event, Resource: s.Resource, Device: s.Device.ID, Identity: s.Target.Attributes()}
}

// podListedDelay is how long the kubelet normally takes to list a pod after the answer to Allocate.
const podListedDelay = 100 * time.Millisecond

// noteAllocated records in the audit log that a container gets devices. After podListedDelay, noteAllocated makes askHolders
// query the kubelet, which can then name the pod.
func (d *daemon) noteAllocated(devices []*inventory.Status) {
	entries := make([]audit.Entry, len(devices))
	for i, s := range devices {
		entries[i] = auditEntry(s, audit.Allocated)
	}
	d.audit.Note(entries...)
	time.AfterFunc(podListedDelay, func() { liveness.Poke(d.pods) })
}

// noteHolders records in the audit log each pod that holds a device according to the map "by", but not according to the earlier
// map "before".
func (d *daemon) noteHolders(snapshot *inventory.Snapshot, before, by map[string][]api.Pod) {
	for s := range snapshot.All() {
		if s.Resource == "" || s.Members != nil { // a bundle's members are recorded, but not the bundle itself
			continue
		}
		for _, pod := range by[s.Name()] {
			if slices.Contains(before[s.Name()], pod) {
				continue
			}
			e := auditEntry(s, audit.Held)
			e.Namespace, e.Pod, e.Container = pod.Namespace, pod.Name, pod.Container
			d.audit.Note(e)
		}
	}
}
