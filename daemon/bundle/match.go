// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// levelCost is the distance that each of host bridge, NUMA node and machine adds, more than the bridges below one host bridge
// can.
const levelCost = 64

// Match returns the largest number of disjoint sets of near items, and among those choices one with the smallest sum of
// distances. Each set has counts[kind] items of each kind, in the order of the kinds, and its first item is the one that the
// distances count from. The answer depends only on the items, and not on their order. It takes a time in proportion to the
// number of sets and of items.
//
// It is exact. Two items are as far as the lowest node above both, so that all sets within one node at the level of near are
// possible, and nodes do not concern each other. With the first items of the sets given, matching from the leaves up is optimal
// for each kind: it has min(needed, there) pairs below each node, and no choice has more. So the sum of distances depends on
// the number of first items below each node alone, as a sum of concave functions of it, and taking one after the other with
// the largest gain finds the best numbers.
func Match(items []Item, counts []int, near Near) (sets [][]Item) {
	for _, top := range tops(items, len(counts), near) {
		size := -1
		for kind, wanted := range counts {
			if n := top.there[kind] / wanted; size < 0 || n < size {
				size = n
			}
		}
		for range size {
			top.choose(counts)
		}
		closed, _, _ := top.pair(counts)
		sets = append(sets, closed...)
	}
	return sets
}

// node is the machine, a NUMA node, a host bridge, a bridge, a function or a leaf, which has the items of one function.
type node struct {
	name   string
	level  int // the [Near] of what is within it
	below  []*node
	items  []Item // of a leaf, by kind and ID
	there  []int  // how many items there are in it, by kind
	firsts int    // how many of those of the first kind are the first of a set
	height int    // of the tree below it
}

// tops returns the nodes that have the items which are near enough to each other.
func tops(items []Item, kinds int, near Near) []*node {
	numa := make(map[string]int) // of host bridges
	for _, item := range items {
		if len(item.Path) > 0 {
			host := item.Path[0]
			if known, ok := numa[host]; !ok || known < item.NUMA {
				numa[host] = item.NUMA
			}
		}
	}
	items = slices.SortedFunc(slices.Values(items), func(a, b Item) int {
		return cmp.Or(slices.Compare(a.Path, b.Path), cmp.Compare(a.Kind, b.Kind), strings.Compare(a.ID, b.ID))
	})
	machine := &node{level: 3, there: make([]int, kinds)}
	for _, item := range items {
		group, path := item.NUMA, item.Path
		if len(path) > 0 {
			group = numa[path[0]]
		} else {
			path = []string{item.ID} // no two of them are nearer than their NUMA node
		}
		// The last name makes a leaf, since a function may be above another.
		machine.add(slices.Concat([]string{fmt.Sprint(group)}, path, []string{""}), item)
	}
	level := int(near)
	all := []*node{machine}
	for range machine.level - level {
		var next []*node
		for _, n := range all {
			next = append(next, n.below...)
		}
		all = next
	}
	return all
}

// add adds an item at the end of a path.
func (n *node) add(path []string, item Item) {
	n.there[item.Kind]++
	n.height = max(n.height, len(path))
	if len(path) == 0 {
		n.items = append(n.items, item)
		return
	}
	at := slices.IndexFunc(n.below, func(b *node) bool { return b.name == path[0] })
	if at < 0 {
		at = len(n.below)
		n.below = append(n.below, &node{name: path[0], level: max(n.level-1, 0), there: make([]int, len(n.there))})
	}
	n.below[at].add(path[1:], item)
}

// cost is the distance of two items for which it is the lowest node above both.
func (n *node) cost() int { return levelCost*n.level + n.height }

// pairs is how many items of sets that begin in the node are in it as well, if as many as possible are.
func (n *node) pairs(firsts int, counts []int) (pairs int) {
	for kind, wanted := range counts {
		there := n.there[kind]
		if kind == 0 {
			wanted, there = wanted-1, there-firsts
		}
		pairs += min(wanted*firsts, there)
	}
	return pairs
}

// choose makes one more item of the first kind the first of a set, where that gains the most.
func (n *node) choose(counts []int) {
	var best []*node
	most := 0
	var search func(way []*node, gain int)
	search = func(way []*node, gain int) {
		last := way[len(way)-1]
		if len(last.items) > 0 && last.firsts < last.there[0] && (best == nil || gain > most) {
			best, most = slices.Clone(way), gain
		}
		for _, b := range last.below {
			if b.there[0] > b.firsts {
				search(append(way, b), gain+(last.cost()-b.cost())*(b.pairs(b.firsts+1, counts)-b.pairs(b.firsts, counts)))
			}
		}
	}
	search([]*node{n}, 0)
	for _, b := range best {
		b.firsts++
	}
}

// pair completes as many sets as possible from the items below a node. It returns those that lack an item too, and the items
// that are left.
func (n *node) pair(counts []int) (closed, open [][]Item, left []Item) {
	for i, item := range n.items {
		if i < n.firsts { // those of the first kind come first
			open = append(open, []Item{item})
		} else {
			left = append(left, item)
		}
	}
	for _, b := range n.below {
		c, o, l := b.pair(counts)
		closed, open, left = append(closed, c...), append(open, o...), append(left, l...)
	}
	var waiting [][]Item
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
		waiting = append(waiting, set)
	}
	size := 0
	for _, wanted := range counts {
		size += wanted
	}
	open = nil
	for _, set := range waiting {
		if len(set) < size {
			open = append(open, set)
			continue
		}
		slices.SortStableFunc(set, func(a, b Item) int { return cmp.Compare(a.Kind, b.Kind) })
		closed = append(closed, set)
	}
	return closed, open, left
}
