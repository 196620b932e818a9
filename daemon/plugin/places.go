// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"slices"
	"strconv"
	"sync"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// places keeps where an offer's devices are, from one request to the next. The zero value is ready. It is safe for
// concurrent use.
type places struct {
	mu   sync.Mutex
	last *tree
}

// tree is the NUMA nodes and below them the tree of buses, with the devices of an offer.
type tree struct {
	listed uint64         // of the offer
	index  map[string]int // of a device in the offer, by ID
	root   *branch
}

// branch is a place on the tree where the paths of devices part.
type branch struct {
	way      int64 // up to the next branch, in steps
	use      int64 // cost of any choice with a device below it
	leaves   []leaf
	branches []*branch
}

// leaf is a device that shares its way up to the next branch with no other.
type leaf struct {
	device int // its index in the offer
	way    int64
	path   []string // of its NUMA node and its buses
}

// of returns the tree of an offer. It takes some milliseconds for 10,000 devices after each change of the list, and next to
// nothing otherwise. A flat tree has all devices in one place.
func (p *places) of(offer *inventory.Offer, flat bool) *tree {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil && p.last.listed == offer.Listed && len(p.last.index) == len(offer.Devices) {
		return p.last
	}
	t := &tree{listed: offer.Listed, index: make(map[string]int, len(offer.Devices))}
	leaves := make([]leaf, len(offer.Devices))
	for i, d := range offer.Devices {
		t.index[d.Device.ID] = i
		leaves[i].device = i
		if !flat {
			first := d.Parts()[0].Device
			leaves[i].path = append([]string{strconv.Itoa(first.NUMANode)}, PCIPath(first.SysPath)...)
		}
	}
	slices.SortStableFunc(leaves, func(a, b leaf) int { return slices.Compare(a.path, b.path) })
	t.root = newBranch(leaves, 0)
	p.last = t
	return t
}

// newBranch returns the branch of devices, sorted by path, whose paths have their elements before depth in common.
func newBranch(devices []leaf, depth int) *branch {
	b := &branch{}
	for len(devices) > 0 {
		first, n, common := devices[0], 1, len(devices[0].path)
		for n < len(devices) && commonDepth(first.path, devices[n].path) > depth {
			common = commonDepth(first.path, devices[n].path)
			n++
		}
		if way := height(common) - height(depth); n == 1 && depth > 0 || len(first.path) == depth {
			b.leaves = append(b.leaves, leaf{device: first.device, way: way})
		} else {
			below := newBranch(devices[:n], common)
			if below.way = way; depth == 0 {
				below.use = nodeCost
			}
			b.branches = append(b.branches, below)
		}
		devices = devices[n:]
	}
	return b
}

// height is the way from the root of the tree, in steps, to so many elements of a path.
func height(depth int) int64 {
	if depth < 2 { // a NUMA node
		return 0
	}
	return int64(depth) + bridgeWay
}
