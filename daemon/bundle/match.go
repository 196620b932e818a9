// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// levelCost is the cost of each level in a path. The levels are host bridges, NUMA nodes and the machine. levelCost is greater
// than the number of bridges below any host bridge.
const levelCost = 64

// Match forms as many disjoint sets of items as possible, with the smallest possible sum of costs. Each set contains
// m.Counts[kind] items of each kind, in the order of the kinds. All items in a set are near the first item, as m.Near requires.
// The cost of a set is the sum of the costs between the first item and each other item. The order of the items does not affect
// the result. Match walks the tree once for each set.
//
// The result is exact for the following reasons. The cost of two items depends on the lowest node above both. Consider the nodes
// at the level of m.Near. All items below one of these nodes are near enough to each other. No set has items from two of these
// nodes, so Match handles each node separately. If the first item of each set is given, matching from the leaves up is optimal
// for each kind. This matching forms as many pairs as possible below each node. The number of pairs is the number of items needed
// or the number of items present, whichever is smaller. Therefore, the sum of costs depends only on how many first items are
// below each node. The gain at each node is a concave function of the number of first items below it. Match can therefore find
// the best numbers by repeatedly adding the first item with the largest gain.
func Match(items []Item, m *device.Members) (sets [][]Item) {
	counts := m.Counts
	items = slices.SortedFunc(slices.Values(items), func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.ID, b.ID))
	})
	places := make([]Place, len(items))
	for i, item := range items {
		places[i] = item.Place
	}
	for _, top := range NewTree(places).nodesAtDepth(3 - slices.Index(device.Nears, m.Near)) {
		top.assign(items, len(counts))
		size := len(items)
		for kind, wanted := range counts {
			size = min(size, top.present[kind]/wanted)
		}
		for range size {
			top.choose(counts)
		}
		closed, _, _ := top.matchPairs(counts)
		sets = append(sets, closed...)
	}
	return sets
}

// matching is the state of a tree node during a call to [Match].
type matching struct {
	items      []Item // items of the leaves, sorted by kind and ID
	usedFirsts int    // number of these items that are first in a set
	present    []int  // number of items in the subtree, by kind
	firsts     int    // number of items in the subtree that are first in a set
	height     int    // height of the subtree
}

// nodesAtDepth returns the topmost nodes in the subtree that have at least the given depth.
func (n *Node) nodesAtDepth(depth int) (tops []*Node) {
	if n.Depth >= depth {
		return []*Node{n}
	}
	for _, b := range n.Below {
		tops = append(tops, b.nodesAtDepth(depth)...)
	}
	return tops
}

// assign adds each item to its leaf's node and counts the items in each subtree.
func (n *Node) assign(items []Item, kinds int) {
	for _, l := range n.Leaves {
		n.items, n.height = append(n.items, items[l.Index]), max(n.height, l.Depth-n.Depth)
	}
	slices.SortStableFunc(n.items, func(a, b Item) int { return cmp.Compare(a.Kind, b.Kind) })
	n.present = count(n.items, kinds)
	for _, b := range n.Below {
		b.assign(items, kinds)
		n.height = max(n.height, b.height+b.Depth-n.Depth)
		for kind, there := range b.present {
			n.present[kind] += there
		}
	}
}

// cost returns the cost for two items. The node n must be the lowest node above both.
func (n *Node) cost() int { return levelCost*max(0, 3-n.Depth) + n.height }

// countPairs returns how many items below the node can belong to the sets whose first item is also below the node.
func (n *Node) countPairs(firsts int, counts []int) (pairs int) {
	for kind, wanted := range counts {
		there := n.present[kind]
		if kind == 0 {
			wanted, there = wanted-1, there-firsts
		}
		pairs += min(wanted*firsts, there)
	}
	return pairs
}

// choose selects another item of the first kind to begin a set. choose selects the item that reduces the sum of costs the most.
func (n *Node) choose(counts []int) {
	var best []*Node
	most := 0
	var search func(way []*Node, gain int)
	search = func(way []*Node, gain int) {
		last := way[len(way)-1]
		if last.usedFirsts < len(last.items) && last.items[last.usedFirsts].Kind == 0 && (best == nil || gain > most) {
			best, most = slices.Clone(way), gain
		}
		for _, b := range last.Below {
			if b.present[0] > b.firsts {
				search(append(way, b), gain+(last.cost()-b.cost())*(b.countPairs(b.firsts+1, counts)-b.countPairs(b.firsts, counts)))
			}
		}
	}
	search([]*Node{n}, 0)
	for _, b := range best {
		b.firsts++
	}
	best[len(best)-1].usedFirsts++
}

// matchPairs completes as many sets as possible with the items below a node. The results are the complete sets, the incomplete
// sets and the unused items.
func (n *Node) matchPairs(counts []int) (closed, open [][]Item, left []Item) {
	for _, first := range n.items[:n.usedFirsts] {
		open = append(open, []Item{first})
	}
	left = slices.Clone(n.items[n.usedFirsts:])
	for _, b := range n.Below {
		c, o, l := b.matchPairs(counts)
		closed, open, left = append(closed, c...), append(open, o...), append(left, l...)
	}
	size := 0
	for _, wanted := range counts {
		size += wanted
	}
	lacking := open[:0]
	for _, set := range open {
		has := count(set, len(counts))
		for kind, wanted := range counts {
			for range wanted - has[kind] {
				at := slices.IndexFunc(left, func(item Item) bool { return item.Kind == kind })
				if at < 0 {
					break
				}
				set, left = append(set, left[at]), slices.Delete(left, at, at+1)
			}
		}
		if len(set) < size {
			lacking = append(lacking, set)
			continue
		}
		slices.SortStableFunc(set, func(a, b Item) int { return cmp.Compare(a.Kind, b.Kind) })
		closed = append(closed, set)
	}
	return closed, lacking, left
}
