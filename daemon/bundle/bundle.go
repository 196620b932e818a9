// SPDX-License-Identifier: Apache-2.0

// Package bundle makes sets of devices that are near to each other on the PCI tree. It reads no hardware.
//
// The first device of a set is the one that the others have to be near to. The distance of two devices depends only on the
// lowest bridge, host bridge or NUMA node above both.
package bundle

// Near is how far an item of a set may be from the first one.
type Near int

// Values of [Near], in the order of the words in the configuration.
const (
	Switch Near = iota // below one PCI bridge, such as that of a PCIe switch
	Root               // below one PCI host bridge
	NUMA               // on one NUMA node
	Any                // on one machine
)

// Item is a device that may become part of a set.
type Item struct {
	ID   string
	Kind int      // index of its kind in the counts of a set
	Path []string // names from the PCI host bridge down to the function, or empty if it is not on PCI
	NUMA int      // node, or -1 if it is not known
}

// Within reports whether b is near enough to a. An unknown NUMA node may be any.
func (near Near) Within(a, b Item) bool {
	common := 0
	for common < min(len(a.Path), len(b.Path)) && a.Path[common] == b.Path[common] {
		common++
	}
	switch {
	case near == Any, common > 1:
		return true
	case near == Switch:
		return false
	case common == 1:
		return true
	}
	return near == NUMA && (a.NUMA == b.NUMA || a.NUMA < 0 || b.NUMA < 0)
}

// Short returns the kinds of which there are too few items for one set.
func Short(items []Item, counts []int) (kinds []int) {
	there := count(items, len(counts))
	for kind, wanted := range counts {
		if there[kind] < wanted {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// count returns how many items there are of each kind.
func count(items []Item, kinds int) []int {
	there := make([]int, kinds)
	for _, item := range items {
		there[item.Kind]++
	}
	return there
}
