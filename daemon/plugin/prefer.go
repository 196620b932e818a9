// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/inventory"
)

const (
	// exactLimit is the number of candidates up to which the best choice is searched for. 16 over 8 are 12,870 choices.
	exactLimit = 16
	// seedLimit is how many beginnings are tried beyond that.
	seedLimit = 8
	// bridgeCost is the distance between two PCI host bridges, more than any path below one.
	bridgeCost = 32
	// sameDeviceCost is the distance between two shares of one device. A container that asks for two wants two devices.
	sameDeviceCost = 256
	// nodeCost is the cost of each NUMA node. It is more than the distances of any choice can add up to.
	nodeCost = 1 << 32
)

// candidate is a share of a device that may be chosen.
type candidate struct {
	share  string
	id     string
	numa   int
	path   []string // the elements of the sysfs path down to the PCI function
	taken  int      // how many shares of the device are not available
	barred bool     // Allocate would refuse it
}

// prefer chooses n of the available shares, among them all that must be included. It prefers devices that are close
// together, or with Spread those that are used least. It is deterministic. It returns nothing for an invalid request,
// which leaves the choice to the kubelet.
func (r *Resource) prefer(p *places, offer *inventory.Offer, available, must []string, n int) []string {
	if !r.Spread && len(must) == 0 && n > 0 && len(available) > exactLimit {
		if chosen := p.of(offer).together(r, offer, available, n); chosen != nil {
			return chosen
		}
	}
	candidates := r.candidates(offer, available)
	must = slices.Compact(slices.Sorted(slices.Values(must)))
	if n <= 0 || n > len(candidates) || n < len(must) {
		return nil
	}
	fixed, free := split(candidates, must)
	if len(fixed) != len(must) {
		return nil
	}
	free = unbarred(free, n-len(fixed))
	var chosen []candidate
	switch {
	case r.Spread:
		chosen = spread(fixed, free, n)
	case len(free) <= exactLimit:
		chosen = closest(fixed, free, n)
	default:
		chosen = closeBy(fixed, free, n)
	}
	shares := make([]string, len(chosen))
	for i, c := range chosen {
		shares[i] = c.share
	}
	slices.Sort(shares)
	return shares
}

// candidates returns what is known of the available shares, sorted, each once. Unknown ones are left out.
func (r *Resource) candidates(offer *inventory.Offer, available []string) []candidate {
	free := make(map[string]int)
	available = slices.Compact(slices.Sorted(slices.Values(available)))
	candidates := make([]candidate, 0, len(available))
	for _, share := range available {
		id, ok := r.deviceID(share)
		d := offer.Find(id)
		if !ok || d == nil {
			continue
		}
		free[id]++
		candidates = append(candidates, candidate{share: share, id: id, numa: d.Device.NUMANode, path: PCIPath(d.Device.SysPath), barred: barred(d)})
	}
	for i := range candidates {
		candidates[i].taken = max(1, r.Shares) - free[candidates[i].id]
	}
	return candidates
}

// barred reports whether the pod of a device has only just released it. The kubelet takes it for free before metalplug
// can know.
func barred(d *inventory.Status) bool { return d.Barred != "" }

// unbarred leaves out what Allocate would refuse, if enough is left.
func unbarred(candidates []candidate, n int) []candidate {
	rest := slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool { return c.barred })
	if len(rest) < n {
		return candidates
	}
	return rest
}

// split takes the shares that must be chosen out of the candidates.
func split(candidates []candidate, must []string) (fixed, free []candidate) {
	for _, c := range candidates {
		if slices.Contains(must, c.share) {
			fixed = append(fixed, c)
		} else {
			free = append(free, c)
		}
	}
	return fixed, free
}

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

// distance is the number of steps from a to b on the tree of buses, up to their common parent and down again.
func distance(a, b candidate) int64 {
	if a.id == b.id {
		return sameDeviceCost
	}
	return steps(len(a.path), len(b.path), commonDepth(a.path, b.path))
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

// steps returns how many steps it is between two places of some depths that have some elements in common.
func steps(a, b, common int) int64 {
	if common == 0 {
		return int64(a+b) + bridgeCost
	}
	return int64(a + b - 2*common)
}

// step is what c adds to the cost of a choice.
func step(chosen []candidate, c candidate) int64 {
	cost := int64(nodeCost)
	for _, other := range chosen {
		cost += distance(c, other)
	}
	if slices.ContainsFunc(chosen, func(other candidate) bool { return other.numa == c.numa }) {
		cost -= nodeCost
	}
	return cost
}

// closest finds the choice of the least cost. Fewest NUMA nodes count first, then the smallest sum of distances, then the
// order of the IDs. It tries every choice that can still be better than the best so far.
func closest(fixed, free []candidate, n int) []candidate {
	s := search{free: free, n: n, best: -1}
	s.extend(slices.Clone(fixed), 0, 0)
	return s.choice
}

type search struct {
	free   []candidate
	n      int
	best   int64 // cost of the best choice so far, or -1
	choice []candidate
}

func (s *search) extend(chosen []candidate, from int, cost int64) {
	if s.best >= 0 && cost >= s.best {
		return
	}
	if len(chosen) == s.n {
		s.best, s.choice = cost, slices.Clone(chosen)
		return
	}
	for i := from; i <= len(s.free)-(s.n-len(chosen)); i++ {
		s.extend(append(chosen, s.free[i]), i+1, cost+step(chosen, s.free[i]))
	}
}

// closeBy finds a choice of low cost among many candidates. It grows one around each of a few seeds, always by the
// candidate closest to it, and keeps the best.
func closeBy(fixed, free []candidate, n int) []candidate {
	seeds := seedLimit
	if len(fixed) > 0 {
		seeds = 1
	}
	best, choice := int64(-1), []candidate(nil)
	for s := range seeds {
		chosen, cost := grow(fixed, free, n, s*len(free)/seeds)
		if best < 0 || cost < best {
			best, choice = cost, chosen
		}
	}
	return choice
}

// grow extends fixed to n candidates. Without any fixed it begins with the one at seed.
func grow(fixed, free []candidate, n, seed int) (chosen []candidate, cost int64) {
	costs := make([]int64, len(free)) // the sum of the distances to what is chosen
	nodes := make(map[int]bool)
	taken := make([]bool, len(free))
	take := func(c candidate) {
		chosen = append(chosen, c)
		nodes[c.numa] = true
		for i := range free {
			costs[i] += distance(free[i], c)
		}
	}
	for _, c := range fixed {
		take(c)
	}
	if len(fixed) == 0 && n > 0 {
		taken[seed] = true
		take(free[seed])
	}
	for len(chosen) < n {
		next, price := nearest(free, taken, costs, nodes)
		taken[next] = true
		cost += price
		take(free[next])
	}
	return chosen, cost
}

// nearest returns the candidate that adds the least.
func nearest(free []candidate, taken []bool, costs []int64, nodes map[int]bool) (index int, cost int64) {
	index = -1
	for i, c := range free {
		price := costs[i]
		if !nodes[c.numa] {
			price += nodeCost
		}
		if !taken[i] && (index < 0 || price < cost) {
			index, cost = i, price
		}
	}
	return index, cost
}

// spread takes the shares of the devices of which the fewest are taken, those of the choice itself included.
func spread(fixed, free []candidate, n int) []candidate {
	load := make(map[string]int)
	for _, c := range slices.Concat(fixed, free) {
		load[c.id] = c.taken
	}
	for _, c := range fixed {
		load[c.id]++
	}
	// Each share of a device comes after one more is taken, so their order is known beforehand.
	turns := slices.Clone(free)
	for i := range turns {
		turns[i].taken = load[turns[i].id]
		load[turns[i].id]++
	}
	slices.SortStableFunc(turns, func(a, b candidate) int { return cmp.Compare(a.taken, b.taken) })
	return slices.Concat(fixed, turns[:n-len(fixed)])
}
