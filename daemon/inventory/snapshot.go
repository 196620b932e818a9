// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// Status is one device in a snapshot. Status is never modified after publication. If any field of a device has changed, the next
// snapshot contains a new Status. Facts that no reader of a snapshot uses therefore belong to [Current] instead.
type Status struct {
	Device *device.Device // shared with other snapshots
	verdict.Verdict
	Observation
	lease.Lease
	Resource string    // resource whose list contains the device, or empty; a bundle member is not in any list
	Bundle   string    // the ID of the device's bundle, or empty
	Members  []*Status // members of a bundle; the bundle's ID is derived from the first one
	// Taker is the resource that matches the device. The device need not be offered. After a reload, another resource may still
	// offer the device. Taker is empty if no resource matches a device that is not offered.
	Taker  string
	HeldAs []string     // the IDs under which pods may hold the device, sorted
	Claims lease.Claims // claims that hold the device
	Cordon *api.Cordon  // the operator's cordon, or nil
	// Evidence shows that a disk is unused. If there is no such proof yet, Evidence shows how much of the disk was read so far.
	Evidence evidence.Evidence
	// Unrecorded means that no pod holds the cordoned disk, but metalplug may still be erasing the disk or has not yet recorded what
	// the last pod left on it.
	Unrecorded bool
	Moved      bool         // whether the device's pod got node paths that no longer belong to the device; in a snapshot, perhaps out of date
	Lost       bool         // see [verdict.Facts.Lost]
	Blocked    string       // why the disk cannot be adopted, or empty; for example, the host uses the disk
	Todo       verdict.Todo // the pending work on a device without a tenant
}

// Current is the newest state of a device, with the facts that only work on the device needs.
type Current struct {
	*Status
	// Proven means that the evidence about the disk is complete and valid, or that the device needs no evidence. Proven is false if
	// the last inspection could not identify the hardware.
	Proven  bool
	Written *uint64 // see [device.Target.Written]
	// Fingerprint identifies the content that the tenant left (see [device.Report]). Fingerprint is empty if unknown.
	Fingerprint string
	Init        string // the vendor unit that must run before a tenant gets the device, or empty
	// CordonChanges increases each time the device is cordoned or uncordoned, even if the device is absent.
	CordonChanges uint
}

// Observation contains the facts from the last inspection of a device.
type Observation struct {
	Present    bool
	Allocation device.Allocation
	Nodes      []device.Node  // the device's existing nodes, even if it is not offered
	Target     *device.Target // identifies the device while metalplug is working on it
}

// Same reports whether the disk is still the one that the tenants' containers got when they started. If so, the tenants may
// continue to use its content.
func (s *Status) Same() bool {
	return s.Held() && s.Medium != "" && s.Medium == s.Target.Medium()
}

// Occupied reports whether a pod holds the device, or whether the field Unrecorded is true.
func (s *Status) Occupied() bool { return s.Held() || s.Unrecorded }

// StableReason returns the field Reason without the percentage of the disk that has been read, because this percentage changes
// often.
func (s *Status) StableReason() string {
	return strings.Replace(s.Reason, s.Evidence.Reading(), evidence.Evidence{}.Reading(), 1)
}

// Offer is one resource's device list. Offer is never modified after publication.
type Offer struct {
	Listed  uint64    // increases with each change to IDs, health or NUMA nodes, which the kubelet sees
	Devices []*Status // sorted by ID
	Members []*Status // devices of the resource that are in bundles instead of in the list, sorted by ID
	Cause   time.Time // arrival of the first event that led to this version, or zero
}

// Find returns the device with this ID in the list, or nil. Find uses a binary search.
func (o *Offer) Find(id string) *Status { return find(o.Devices, id) }

func find(sorted []*Status, id string) *Status {
	if n, ok := slices.BinarySearchFunc(sorted, id, compareID); ok {
		return sorted[n]
	}
	return nil
}

func compareID(s *Status, id string) int { return strings.Compare(s.Device.ID, id) }

// Snapshot is the inventory at one point in time. Snapshot is never modified after publication.
type Snapshot struct {
	Version uint64
	Offers  map[string]*Offer // keys are resource names
	Others  []*Status         // devices that are not offered, sorted by sysfs path and ID
}

// Offer returns the offer of a resource, or an empty offer.
func (s *Snapshot) Offer(resource string) *Offer {
	if o := s.Offers[resource]; o != nil {
		return o
	}
	return &Offer{}
}

// All yields the offered devices, sorted by resource and ID, and then the other devices. For each resource, the devices in
// its list precede the devices in bundles.
func (s *Snapshot) All() iter.Seq[*Status] {
	return func(yield func(*Status) bool) {
		for _, resource := range slices.Sorted(maps.Keys(s.Offers)) {
			for _, d := range slices.Concat(s.Offers[resource].Devices, s.Offers[resource].Members) {
				if !yield(d) {
					return
				}
			}
		}
		for _, d := range s.Others {
			if !yield(d) {
				return
			}
		}
	}
}

// Find returns the device with this ID, or nil. The device need not be offered.
func (s *Snapshot) Find(id string) *Status {
	for _, o := range s.Offers {
		if d := cmp.Or(o.Find(id), find(o.Members, id)); d != nil {
			return d
		}
	}
	for _, d := range s.Others {
		if id != "" && d.Device.ID == id {
			return d
		}
	}
	return nil
}

// updates contains the new status of each changed device, by resource and ID. The status is nil if the device leaves the
// resource.
type updates map[string]map[string]*Status

func (u updates) set(resource, id string, s *Status) {
	if u[resource] == nil {
		u[resource] = make(map[string]*Status)
	}
	u[resource][id] = s
}

// patch returns a copy of the offer with new statuses. The keys are IDs (see [updates]).
func (o *Offer) patch(changed map[string]*Status) *Offer {
	next := &Offer{Listed: o.Listed, Devices: patchList(o.Devices, changed, false), Members: patchList(o.Members, changed, true)}
	if !slices.EqualFunc(o.Devices, next.Devices, sameListing) {
		next.Listed++
	}
	return next
}

// patchList returns a sorted copy of before with new statuses. If the flag members is set, the list contains the members of
// bundles. Otherwise, the list contains all other devices.
func patchList(before []*Status, changed map[string]*Status, members bool) []*Status {
	next := slices.Clone(before)
	var added []*Status
	for id, s := range changed {
		n, found := slices.BinarySearchFunc(next, id, compareID)
		switch belongs := s != nil && (s.Bundle != "") == members; {
		case belongs && found:
			next[n] = s
		case belongs:
			added = append(added, s)
		case found:
			next = slices.Delete(next, n, n+1)
		}
	}
	if len(added) > 0 { // sorting once is faster than many insertions
		next = append(next, added...)
		slices.SortFunc(next, func(a, b *Status) int { return compareID(a, b.Device.ID) })
	}
	return next
}

// sameListing reports whether the entries for a and b in the device list would be the same.
func sameListing(a, b *Status) bool {
	return a == b || a.Device.ID == b.Device.ID && a.Healthy == b.Healthy && a.Device.NUMANode == b.Device.NUMANode &&
		slices.Equal(a.NUMANodes(), b.NUMANodes())
}
