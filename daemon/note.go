// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/liveness"
)

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

// noteHolders records in the audit log each pod that holds a device now but did not hold it at the last call. The first call
// records all pods that hold a device.
func (d *daemon) noteHolders(snapshot *inventory.Snapshot, by map[string][]api.Pod) {
	for s := range snapshot.All() {
		if s.Resource == "" || s.Members != nil { // the members of a bundle are recorded, but not the bundle itself
			continue
		}
		for _, pod := range by[s.Name()] {
			if slices.Contains(d.lastHolders[s.Name()], pod) {
				continue
			}
			e := auditEntry(s, audit.Held)
			e.Namespace, e.Pod, e.Container = pod.Namespace, pod.Name, pod.Container
			d.audit.Note(e)
		}
	}
	d.lastHolders = by
}
