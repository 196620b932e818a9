// SPDX-License-Identifier: Apache-2.0

package plugin

import "strings"

// PCIPath returns the elements of a sysfs path from the PCI host bridge down to the function, or for what is not on PCI
// the whole path.
func PCIPath(sysPath string) []string {
	elements := strings.Split(strings.TrimPrefix(sysPath, "/sys/devices/"), "/")
	last := len(elements)
	for i, e := range elements {
		if strings.Count(e, ":") == 2 && strings.Contains(e, ".") {
			last = i + 1
		}
	}
	return elements[:last]
}

// commonDepth returns how many elements two paths have in common.
func commonDepth(a, b []string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Distance is how far two PCI functions are from each other, in the words of "nvidia-smi topo -m".
type Distance string

// Distances, the nearest first.
const (
	PIX  Distance = "PIX"  // at most one switch is between them
	PXB  Distance = "PXB"  // several switches, but no host bridge
	PHB  Distance = "PHB"  // a host bridge
	NODE Distance = "NODE" // the way between host bridges of one NUMA node
	SYS  Distance = "SYS"  // the way between NUMA nodes
)

// DistanceOf returns how far two functions with these [PCIPath]s are from each other. oneNode reports whether they are on one
// NUMA node. Below a switch are a downstream port and the function.
func DistanceOf(a, b []string, oneNode bool) Distance {
	switch common := commonDepth(a, b); {
	case common == 0 && oneNode:
		return NODE
	case common == 0:
		return SYS
	case common == 1:
		return PHB
	case max(len(a), len(b))-common > 2:
		return PXB
	}
	return PIX
}
