// SPDX-License-Identifier: Apache-2.0

package device

import "slices"

// Bundle is the class of devices that are made of devices of other resources. It finds nothing in udev, and is not one of
// [Classes]. The inventory makes its devices.
var Bundle = Class{Name: "bundle", Doc: "devices of other resources that are near to each other"}

// BundlePrefix begins the ID of a bundle. The ID of its first member follows.
const BundlePrefix = "bundle"

// Nears are the words for how far a device of a bundle may be from the first one, the nearest first. They are both below one
// PCI bridge, such as that of a PCIe switch, below one PCI host bridge, on one NUMA node, or on one machine.
var Nears = []string{"switch", "root", "numa", "any"}

// Members says which devices make up a bundle.
type Members struct {
	Resources []string // each once, that of the first member first
	Counts    []int    // how many devices of each
	Near      string   // one of [Nears]
	Hold      bool     // whether devices that are left over are not offered
}

// Kind returns the index of a resource among the members, or -1.
func (m *Members) Kind(resource string) int {
	if m == nil {
		return -1
	}
	return slices.Index(m.Resources, resource)
}

// BundleOf returns the rule for the bundles that devices of a resource belong to, or nil.
func BundleOf(rules []Rule, resource string) *Rule {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Bundle.Kind(resource) >= 0 })
	if i < 0 {
		return nil
	}
	return &rules[i]
}
