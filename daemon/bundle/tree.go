// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
)

// Place describes where a device is within a Kubernetes node.
type Place struct {
	Path []string // names from the PCI host bridge down to the function, or empty if the device is not on PCI
	NUMA int      // NUMA node, or -1 if unknown
}

// PlaceOf returns a device's place in the tree.
func PlaceOf(d *device.Device) Place {
	p := Place{NUMA: d.NUMANode}
	if function := d.Function(); function != "" {
		p.Path = strings.Split(strings.TrimPrefix(function, "/sys/devices/"), "/")
	}
	return p
}

// Distances lists all distances, nearest first.
var Distances = []api.Distance{api.PIX, api.PXB, api.PHB, api.NODE, api.SYS}

// Distance returns how far apart two devices are. If two functions are below the same PCIe switch, each path contains at most two
// elements below the upstream port, which are a downstream port and the function.
func (p Place) Distance(q Place) api.Distance {
	switch common := commonDepth(p.Path, q.Path); {
	case common == 0 && p.NUMA == q.NUMA:
		return api.NODE
	case common == 0:
		return api.SYS
	case common == 1:
		return api.PHB
	case max(len(p.Path), len(q.Path))-common > 2:
		return api.PXB
	}
	return api.PIX
}

// commonDepth returns how many elements two paths have in common.
func commonDepth(a, b []string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Node is a point where the tree branches. A Node is the machine, a NUMA node, a host bridge or a bridge.
type Node struct {
	Depth  int // 0 for the machine, 1 for a NUMA node, 2 for a PCI host bridge, more for a bridge below it
	Leaves []Leaf
	Below  []*Node // children, without nodes that have only one child
	matching
}

// Leaf is a device directly below a node.
type Leaf struct {
	Index int // index of the device
	Depth int // depth of the device in the tree
	path  []string
}

// NewTree returns the tree for devices at the given places. If a device's NUMA node is unknown, NewTree uses that of the device's
// host bridge.
func NewTree(places []Place) *Node {
	numa := make(map[string]int) // keys are host bridges, values are their NUMA nodes
	for _, p := range places {
		if len(p.Path) > 0 && p.NUMA >= 0 {
			numa[p.Path[0]] = p.NUMA
		}
	}
	leaves := make([]Leaf, len(places))
	for i, p := range places {
		node := p.NUMA
		if len(p.Path) > 0 && node < 0 {
			if known, ok := numa[p.Path[0]]; ok {
				node = known
			}
		}
		leaves[i] = Leaf{Index: i, Depth: 1 + len(p.Path), path: append([]string{strconv.Itoa(node)}, p.Path...)}
	}
	slices.SortStableFunc(leaves, func(a, b Leaf) int { return slices.Compare(a.path, b.path) })
	return newNode(leaves, 0)
}

// newNode returns the node for devices whose paths begin with the same elements. The parameter depth is the number of elements
// that are the same. The devices must be sorted by path.
func newNode(devices []Leaf, depth int) *Node {
	node := &Node{Depth: depth}
	for len(devices) > 0 {
		first, n, common := devices[0], 1, devices[0].Depth
		for n < len(devices) && commonDepth(first.path, devices[n].path) > depth {
			common = commonDepth(first.path, devices[n].path)
			n++
		}
		if n == 1 && depth > 0 || first.Depth == depth {
			node.Leaves = append(node.Leaves, first)
		} else {
			node.Below = append(node.Below, newNode(devices[:n], common))
		}
		devices = devices[n:]
	}
	return node
}
