// SPDX-License-Identifier: Apache-2.0

package device

import "slices"

// Bundle is the class of bundles, which combine devices of other resources. Bundle matches no udev device, so [Classes] does not
// contain it. The inventory forms the bundles.
var Bundle = Class{Name: BundleName, Doc: "devices of other resources that are near each other"}

// BundlePrefix is the beginning of a bundle's ID. The ID of the bundle's first member follows the prefix.
const BundlePrefix = "bundle"

// Nears lists the values of the configuration key "near", which limits how far a bundle's other members may be from the first.
var Nears = []string{
	"switch", // below the same PCI bridge, such as a port of a PCIe switch
	"root",   // below the same PCI host bridge
	"numa",   // on the same NUMA node
	"any",    // on the same machine
}

// Members describes the devices that form a bundle.
type Members struct {
	Resources []string // resources without duplicates, beginning with the first member's resource
	Counts    []int    // number of devices from each resource
	Near      string   // one of [Nears]
	Hold      bool     // unused members are withheld instead of being offered individually
}

// Kind returns the index of a resource in Resources, or -1 if the bundle has no member from this resource.
func (m *Members) Kind(resource string) int {
	if m == nil {
		return -1
	}
	return slices.Index(m.Resources, resource)
}

// BundleOf returns the first rule for bundles with a member from the given resource, or nil.
func BundleOf(rules []Rule, resource string) *Rule {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Bundle.Kind(resource) >= 0 })
	if i < 0 {
		return nil
	}
	return &rules[i]
}
