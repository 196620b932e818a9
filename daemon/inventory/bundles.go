// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/lease"
)

// membership is the relation between a device and its bundle. A bundle has no entry in the inventory. It consists of all devices
// whose bundle field contains its ID. Each of these members has its own lease. The kubelet knows only the bundle's ID.
type membership struct {
	bundle         string // its bundle's ID, or empty
	bundleResource string // the bundle's resource
	asideReason    string // why the device is offered neither on its own nor in a bundle, or empty
	// vacant is set if asideReason is not empty and the kubelet has confirmed that no pod holds the device. Only a disk with a
	// tenant's data can be vacant. Such a disk stays assigned to its resource and is listed as Unhealthy. metalplug then erases the
	// disk as that resource requires.
	vacant bool
}

// bundler assembles an inventory's bundles.
type bundler struct{ *loop }

// name returns the ID by which the kubelet knows a device. For a bundle member, this is the bundle's ID.
func (e *entry) name() string { return cmp.Or(e.bundle, e.device.ID) }

// listResource returns the resource whose device list contains the device or its bundle.
func (e *entry) listResource() string { return cmp.Or(e.bundleResource, e.resource) }

// Name returns the ID by which the kubelet knows a device. For a bundle member, the result is the bundle's ID.
func (s *Status) Name() string { return cmp.Or(s.Bundle, s.Device.ID) }

// Parts returns a bundle's members, or the device itself if it is not a bundle.
func (s *Status) Parts() []*Status {
	if s.Members == nil {
		return []*Status{s}
	}
	return s.Members
}

// NUMANodes returns the known NUMA nodes of a device or of all members of a bundle, sorted and without duplicates.
func (s *Status) NUMANodes() (nodes []int) {
	for _, part := range s.Parts() {
		if part.Device.NUMANode >= 0 {
			nodes = append(nodes, part.Device.NUMANode)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// members returns the rule for the members of a resource's bundles. members returns nil if the resource has no bundles.
func (l bundler) members(resource string) *device.Members {
	if r := l.rule(resource); r != nil {
		return r.Bundle
	}
	return nil
}

// byBundle returns the members of all bundles, by bundle ID. The first member of a bundle is the one whose ID became part of the
// bundle's ID. The other members are sorted by kind and ID.
func (l bundler) byBundle() map[string][]*entry {
	all := make(map[string][]*entry)
	for _, e := range l.entries {
		if e.bundle != "" {
			all[e.bundle] = append(all[e.bundle], e)
		}
	}
	for id, members := range all {
		rank := func(e *entry) int {
			if bundle.ID(e.device.ID) == id {
				return -2 // sorts before -1, the rank of a resource that is no longer part of the bundle
			}
			return l.members(e.bundleResource).Kind(e.resource)
		}
		slices.SortFunc(members, func(a, b *entry) int {
			return cmp.Or(rank(a)-rank(b), strings.Compare(a.device.ID, b.device.ID))
		})
	}
	return all
}

// assemble combines devices into bundles. assemble uses only devices that no pod can get, because they are vacant or not in any
// device list. assemble does not move devices between existing bundles. If a device must leave a device list or an incomplete
// bundle, assemble marks it Unhealthy. The device leaves when the kubelet confirms that no pod holds it.
func (l bundler) assemble() {
	stirred := l.unmatched
	for e := range l.dirty {
		stirred = stirred || e.membership != membership{} || device.BundleOf(l.rules, e.resource) != nil
	}
	if !stirred {
		return
	}
	l.unmatched = l.inspector.Busy()
	bundles := l.byBundle()
	for id, members := range bundles {
		broken := l.dissolveReason(id, members)
		for _, e := range members {
			l.setAside(e, broken)
		}
	}
	for i := range l.rules {
		if l.rules[i].Bundle != nil {
			l.match(&l.rules[i], bundles)
		}
	}
	for _, e := range l.entries {
		if e.bundle == "" && e.asideReason != "" && device.BundleOf(l.rules, e.resource) == nil {
			l.setAside(e, "")
		}
	}
}

func (l bundler) setAside(e *entry, reason string) {
	if e.asideReason != reason {
		e.asideReason, e.vacant = reason, e.vacant && reason != ""
		l.queueVerdict(e)
	}
}

const (
	whileHeld = ": the device leaves the bundle once no pod holds the device"
	// lostMember is the reason why a device must leave its bundle.
	lostMember = "the bundle lost a member, or its configuration changed" + whileHeld
)

// dissolveReason returns the reason why a bundle must be dissolved once no pod holds it. The reason is empty if the bundle may
// continue to exist.
func (l bundler) dissolveReason(id string, members []*entry) string {
	first := members[0]
	m := l.members(first.bundleResource)
	if m.Kind(first.resource) != 0 || bundle.ID(first.device.ID) != id {
		return lostMember
	}
	counts := make([]int, len(m.Counts))
	for _, e := range members {
		kind := m.Kind(e.resource)
		switch {
		case kind < 0 || e.bundleResource != first.bundleResource:
			return lostMember
		case e.sighting != nil && first.sighting != nil && !bundle.Within(m.Near, bundle.PlaceOf(first.device), bundle.PlaceOf(e.device)):
			return fmt.Sprintf("%s is too far from %s (near = %q)%s", e.device.ID, first.device.ID, m.Near, whileHeld)
		}
		counts[kind]++
	}
	if !slices.Equal(counts, m.Counts) {
		return lostMember
	}
	return ""
}

// match assembles a rule's bundles. match also considers free devices that are offered individually, because they can move to a
// bundle. While inspections are pending, match does not assemble any bundle, because an inspection may find a device that is
// closer to the others.
func (l bundler) match(r *device.Rule, bundles map[string][]*entry) {
	left := make(map[*entry]bool) // the matching devices that are not in a bundle
	var items []bundle.Item
	for _, e := range l.entries {
		kind := r.Bundle.Kind(e.resource)
		if kind < 0 || e.bundle != "" {
			continue
		}
		left[e] = true
		if l.canJoin(e) {
			items = append(items, bundle.Item{ID: e.device.ID, Kind: kind, Place: bundle.PlaceOf(e.device)})
		}
	}
	var sets [][]bundle.Item
	lack := "devices are being inspected"
	if !l.unmatched {
		sets = bundle.Match(items, r.Bundle)
		lack = bundle.Shortage(r.Bundle, items, len(sets))
	}
	for _, set := range sets {
		id := bundle.ID(set[0].ID)
		ready := bundles[id] == nil && l.entries[id] == nil
		for _, item := range set {
			e := l.entries[item.ID]
			ready = ready && (!e.offered || e.vacant)
			delete(left, e)
		}
		for _, item := range set {
			e := l.entries[item.ID]
			if ready {
				e.membership = membership{bundle: id, bundleResource: r.Resource}
				l.queueVerdict(e)
			} else {
				l.setAside(e, fmt.Sprintf("the device becomes part of a bundle of %s once no pod holds the device", r.Resource))
			}
		}
	}
	for e := range left {
		switch {
		case l.unmatched && e.offered: // the device stays where it is until no inspection is pending
		case r.Bundle.Hold, l.unmatched:
			l.setAside(e, fmt.Sprintf("the device waits for a bundle of %s: %s", r.Resource, lack))
		default:
			l.setAside(e, "")
		}
	}
}

// canJoin reports whether a device may become part of a new bundle. The device must be present, healthy, cleaned up and not
// cordoned, and no pod may hold it.
func (l bundler) canJoin(e *entry) bool {
	f := l.facts(e)
	return e.sighting != nil && f.Unusable() == nil && f.HardwareFaults() == "" && f.Cordon == "" && !f.Lease.Held() && !f.Lease.Used && f.Lease.Failure == ""
}

// publishBundles creates new statuses for the bundles whose members have changed.
func (l bundler) publishBundles(changed updates, now time.Time) {
	there := l.byBundle()
	for _, id := range slices.Sorted(maps.Keys(there)) {
		s := bundleStatus(id, there[id], now)
		old := l.bundles[id]
		if old != nil && old.Resource == s.Resource && slices.Equal(old.Members, s.Members) {
			continue
		}
		if old != nil && old.Healthy == s.Healthy && old.Reason == s.Reason {
			s.Since = old.Since
		}
		if old != nil && old.Resource != s.Resource {
			changed.set(old.Resource, id, nil)
		}
		l.report(old, s)
		l.bundles[id] = s
		changed.set(s.Resource, id, s)
	}
	for id, old := range l.bundles {
		if there[id] == nil {
			delete(l.bundles, id)
			changed.set(old.Resource, id, nil)
			l.Log.Info("device withdrawn", "device", id, "resource", old.Resource, "reason", "the bundle is no longer complete")
		}
	}
}

// bundleStatus returns a bundle's status. The bundle is as healthy as its least healthy member. Its lease is that of the member
// with the highest [urgency].
func bundleStatus(id string, members []*entry, now time.Time) *Status {
	s := &Status{Resource: members[0].bundleResource, Taker: members[0].bundleResource}
	s.Device = &device.Device{ID: id, Class: &device.Bundle, NUMANode: -1}
	s.Healthy, s.Present, s.Parked, s.Since = true, true, true, now
	var reasons, warnings, models []string
	for _, e := range members {
		m := e.status
		s.Members = append(s.Members, m)
		s.Present, s.Stale = s.Present && m.Present, s.Stale || m.Stale
		s.Barred, s.Reserved = cmp.Or(s.Barred, m.Barred), cmp.Or(s.Reserved, m.Reserved)
		s.Allocation.Nodes, s.Nodes = append(s.Allocation.Nodes, m.Allocation.Nodes...), append(s.Nodes, m.Nodes...)
		models = append(models, cmp.Or(m.Device.Model, m.Device.ClassName()))
		if !m.Healthy {
			s.Healthy, s.Parked, s.Cordon = false, s.Parked && m.Parked, cmp.Or(s.Cordon, m.Cordon)
			reasons = append(reasons, m.Device.ID+": "+m.StableReason())
		}
		if m.Warning != "" {
			warnings = append(warnings, m.Device.ID+": "+m.Warning)
		}
		if slices.Contains(m.HeldAs, id) {
			s.HeldAs = []string{id}
		}
		if s.State == "" || urgency(m.Lease) > urgency(s.Lease) {
			s.Lease = m.Lease
		}
	}
	if s.Parked = s.Parked && !s.Healthy; !s.Parked { // a fault takes precedence over a cordon
		s.Cordon = nil
	}
	s.Reason, s.Warning, s.Device.Model = strings.Join(reasons, "; "), strings.Join(warnings, "; "), strings.Join(models, " + ")
	if nodes := s.NUMANodes(); len(nodes) > 0 {
		s.Device.NUMANode = nodes[0]
	}
	return s
}

// urgency ranks a lease by the reason why the next pod cannot get the device. A lease that a pod holds has the highest rank,
// followed by a lease with a failure and a lease with pending work.
func urgency(of lease.Lease) int {
	switch {
	case of.Held(): // so that metalplug queries the kubelet about the bundle as long as a pod holds any member
		return 3
	case of.Failure != "":
		return 2
	case of.State != lease.Free:
		return 1
	}
	return 0
}

// restoreBundle restores a bundle that a pod holds according to the kubelet's checkpoint. If the state file is lost, only
// the checkpoint lists the members.
func (l bundler) restoreBundle(of, id string, known kubelet.Known) {
	for _, m := range known.Members {
		if r := l.rule(m.Resource); r != nil {
			l.restoreDevice(*r, m.ID, known).membership = membership{bundle: id, bundleResource: of}
		}
	}
	if len(known.Members) == 0 {
		l.Log.Error("state lost", "device", id, "resource", of,
			"err", errors.New("a pod holds a bundle whose members are unknown; cordon the devices of that pod"))
	}
}
