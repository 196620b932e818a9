// SPDX-License-Identifier: Apache-2.0

// Package bundle forms sets of devices that are near each other. The package also provides the tree of NUMA nodes and PCI bridges
// that shows how far apart devices are. The package does not access hardware.
//
// A distance is a value from PIX to SYS, which metalplugctl shows to operators. To choose the devices in a set, [Match] uses
// costs instead of distances. The cost for two devices depends only on the lowest bridge, host bridge or NUMA node that they
// share. Distances and costs are measured from the first device in a set.
package bundle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// Within reports whether the device at b can join a bundle whose first member is at a. The parameter "near" is a value in
// [device.Nears]. For "numa", a device on an unknown NUMA node is near every other device.
func Within(near string, a, b Place) bool {
	return near == "numa" && (a.NUMA < 0 || b.NUMA < 0) || slices.Index(Distances, a.Distance(b)) <= slices.Index(device.Nears, near)+1
}

// Item is a device that can become part of a set.
type Item struct {
	ID   string
	Kind int // index of the item's kind in [device.Members.Counts]
	Place
}

// ID returns a bundle's ID. The parameter "first" is the ID of its first member.
func ID(first string) string { return device.MakeID(device.BundlePrefix, first) }

// Seen returns the IDs of the bundles that can be formed from the devices in seen. If no bundle can be formed, the result "short"
// explains why.
func Seen(m *device.Members, seen []device.Sighting) (ids []string, short string) {
	var items []Item
	for _, s := range seen {
		if kind := m.Kind(s.Resource); kind >= 0 && s.Offer == nil {
			items = append(items, Item{ID: s.Device.ID, Kind: kind, Place: PlaceOf(s.Device)})
		}
	}
	sets := Match(items, m)
	for _, set := range sets {
		ids = append(ids, ID(set[0].ID))
	}
	if len(ids) == 0 {
		short = Shortage(m, items, 0)
	}
	return ids, short
}

// Shortage explains why one more bundle cannot be formed from the items. The parameter bundles is the number of bundles that can
// be formed.
func Shortage(m *device.Members, items []Item, bundles int) string {
	there := count(items, len(m.Counts))
	var missing []string
	for kind, wanted := range m.Counts {
		if there[kind] < (bundles+1)*wanted {
			missing = append(missing, m.Resources[kind])
		}
	}
	if len(missing) == 0 {
		return fmt.Sprintf("the remaining devices are not near enough (near = %q)", m.Near)
	}
	return "too few devices are left of " + strings.Join(missing, ", ")
}

// count returns a slice with the number of items of each kind.
func count(items []Item, kinds int) []int {
	there := make([]int, kinds)
	for _, item := range items {
		there[item.Kind]++
	}
	return there
}
