// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// Status is one device as it stands in a snapshot. It is never written after it was published.
type Status struct {
	Device     *device.Device    // shared with other snapshots
	Allocation device.Allocation // as of the last look at the device
	Nodes      []device.Node     // of the device, also of one that is not offered, as far as they are there
	Target     *device.Target    // of that look too: who does anything to the device does it to the one that was seen
	Resource   string            // whose offer it is in; empty: it is seen and not offered
	Reason     string            // why it is Unhealthy or not offered; empty for a healthy one
	Warning    string            // what is not as it should be, though it can be used
	Since      time.Time         // when Healthy or Reason last changed
	As         []string          // the IDs by which pods may hold it, sorted
	Used       string            // why nobody but the pod that holds it may have it: the host uses it, or it holds data
	Init       string            // what has to be done before anybody may have it; empty: nothing
	Failure    string            // why it could not be reset or erased
	Pods       []string          // UIDs of those that containers were started for since it was last cleared; nil: not known

	FailedByHand ByHand // what somebody tried by hand, of which Failure tells why it went wrong
	Healthy      bool
	Present      bool // whether the hardware is there
	Held         bool // whether a pod holds it, as far as is known
	Stale        bool // whether it is in the offer only because a pod may still hold it
	// Parked: it is Unhealthy only because it is cordoned. A pod that holds it may go on, and start its containers again.
	Parked   bool
	Cordon   *Cordon // by which the operator keeps it from new pods; nil: nobody does
	Erasable bool    // whether Used is what its last pod has left, and is erased before the next gets it
	Due      bool    // whether it was given to a container that has not been started yet
	Dirty    bool    // whether a container was started with it since it was last cleared
	Leftover bool    // whether what is on the disk is what a pod has left there
	Own      bool    // whether the disk is the one that its pods were given: they may go on with what is on it, wherever it has been
	// Fingerprint is by what that is known again, see [device.Reading]; empty: it is not known.
	Fingerprint string
	LeftBlank   bool   // whether nothing was on it when its pod had gone
	Pending     bool   // whether it must be cleared after its last pod, or that has gone wrong
	State       State  // of its lease
	Taker       string // the resource that takes it, offered or not; empty: none does
	// Evidence is why a disk counts as nobody's, or how far the read is that shall prove it.
	Evidence  Evidence
	Readable  bool   // whether the disk is to be read for evidence
	Blocked   string // why the disk cannot be adopted: the host uses it, or it is not for containers
	Uncleared bool   // whether nobody may have it before it was cleared
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
	n, ok := slices.BinarySearchFunc(o.Devices, id, compareID)
	if !ok {
		return nil
	}
	return o.Devices[n]
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

// All yields every device, offered or not.
func (s *Snapshot) All() iter.Seq[*Status] {
	return func(yield func(*Status) bool) {
		for _, o := range s.Offers {
			for _, d := range o.Devices {
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
