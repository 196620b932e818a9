// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/lease"
)

// Status is one device as it stands in a snapshot. It is never written after it was published.
type Status struct {
	Device *device.Device // shared with other snapshots
	Verdict
	Observation
	lease.Lease
	Resource string   // whose offer it is in; empty: it is not offered
	Taker    string   // the resource that takes it, offered or not; empty: none does
	As       []string // the IDs by which pods may hold it, sorted
	Cordon   *Cordon  // by which the operator keeps it from new pods; nil: there is none
	// Evidence is why a disk counts as unused, or how far the read is that shall prove it.
	Evidence  Evidence
	Moved     bool    // whether its pod was given nodes that are not its nodes any more
	LeftBlank bool    // whether nothing was on the disk when its tenant had gone
	Written   *uint64 // see [device.Target.Written]
	// Fingerprint is by what the content that the tenant left is known again, see [device.Reading]; empty: it is not known.
	Fingerprint string
	Blocked     string // why the disk cannot be adopted: the host uses it, or it is not for containers
	Init        string // the vendor's unit that has to run before a tenant may have it; empty: none
	Todo        Todo   // what it waits for that no tenant has
}

// Observation is what the last look at a device saw.
type Observation struct {
	Present    bool
	Allocation device.Allocation
	Nodes      []device.Node  // of the device, also of one that is not offered, as far as they are there
	Target     *device.Target // the work on the device is done to the one that was seen
}

// Same reports whether the disk is the one that its tenants' containers were started with, wherever it has been: they may go
// on with what is on it.
func (s *Status) Same() bool {
	return s.Held() && s.Medium != "" && s.Medium == s.Target.Medium()
}

// reading is the reason of a disk that is being read.
func reading(v Evidence) string {
	return fmt.Sprintf("%v: being read, %d %%", device.ErrUnproven, v.Percent())
}

// Gist is the reason of a status without how far a disk was read, which changes all the time.
func (s *Status) Gist() string {
	return strings.Replace(s.Reason, reading(s.Evidence), reading(Evidence{}), 1)
}

// Offer is what the kubelet is told of one resource. It is never written after it was published.
type Offer struct {
	Version uint64    // grows with every change of this offer
	Listed  uint64    // grows with every change that the kubelet is told of: IDs, health, NUMA nodes
	Devices []*Status // sorted by ID
	Cause   time.Time // when the first event arrived that led to this version; zero: no event did
}

// Find returns the device of that ID, or nil. It takes a binary search.
func (o *Offer) Find(id string) *Status {
	if n, ok := slices.BinarySearchFunc(o.Devices, id, compareID); ok {
		return o.Devices[n]
	}
	return nil
}

func compareID(s *Status, id string) int { return strings.Compare(s.Device.ID, id) }

// Snapshot is the inventory at one moment. It is never written after it was published.
type Snapshot struct {
	Version uint64
	Offers  map[string]*Offer // by resource
	Others  []*Status         // seen and not offered, sorted by sysfs path and ID
}

// Offer returns the offer of a resource; an empty one if it has no devices.
func (s *Snapshot) Offer(resource string) *Offer {
	if o := s.Offers[resource]; o != nil {
		return o
	}
	return &Offer{}
}

// All yields every device: offered ones by resource and ID, then the others.
func (s *Snapshot) All() iter.Seq[*Status] {
	return func(yield func(*Status) bool) {
		for _, resource := range slices.Sorted(maps.Keys(s.Offers)) {
			for _, d := range s.Offers[resource].Devices {
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

// Find returns the device of that ID, offered or not; nil: there is none.
func (s *Snapshot) Find(id string) *Status {
	for _, o := range s.Offers {
		if d := o.Find(id); d != nil {
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

func compareOthers(a, b *Status) int {
	return cmp.Or(strings.Compare(a.Device.SysPath, b.Device.SysPath), strings.Compare(a.Device.ID, b.Device.ID))
}

// patch returns offer o with the changed devices in it and the removed ones taken out.
func (o *Offer) patch(changed []*Status, removed map[string]bool) *Offer {
	next := &Offer{Version: o.Version + 1, Listed: o.Listed, Devices: slices.Clone(o.Devices)}
	var added []*Status
	relisted := false
	for _, s := range changed {
		n, ok := slices.BinarySearchFunc(next.Devices, s.Device.ID, compareID)
		if !ok {
			added = append(added, s)
			continue
		}
		relisted = relisted || !sameListing(next.Devices[n], s)
		next.Devices[n] = s
	}
	if len(removed) > 0 {
		relisted = true
		next.Devices = slices.DeleteFunc(next.Devices, func(s *Status) bool { return removed[s.Device.ID] })
	}
	if len(added) > 0 {
		relisted = true
		next.Devices = append(next.Devices, added...)
		slices.SortFunc(next.Devices, func(a, b *Status) int { return strings.Compare(a.Device.ID, b.Device.ID) })
	}
	if relisted {
		next.Listed++
	}
	return next
}

// sameListing tells whether the kubelet is told the same of a and b.
func sameListing(a, b *Status) bool {
	return a.Healthy == b.Healthy && a.Device.NUMANode == b.Device.NUMANode
}
