// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"slices"

	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// A packed choice prefers devices that are near each other. A spread choice ([Resource].Spread) prefers the devices with the
// fewest shares in use. The cost of a packed choice has two parts. The first part is the number of NUMA nodes, which weighs more.
// The second part is the sum of the distances on the bus tree between all pairs of shares. Each step on the tree counts once for
// each pair of shares that it separates. The cheapest choice in a branch therefore consists of the cheapest choices in its
// children. The cost of a spread choice is the total number of shares already in use on its devices.
const (
	// bridgeWay is the distance from a PCI host bridge to its parent. bridgeWay is greater than any distance below one host
	// bridge, so devices below the same host bridge are always nearer.
	bridgeWay = 16
	// sameDeviceCost is the cost of choosing two shares of the same device. A container that requests two devices expects
	// two different ones.
	sameDeviceCost = 256
	// nodeCost is the cost of each NUMA node. nodeCost exceeds the sum of the distances in any choice.
	nodeCost = 1 << 32
)

// newTree returns the tree for an offer's devices, and the index of each device in the offer by ID. For 10,000 devices, newTree
// takes a few milliseconds. If flat is set, all devices are at the same place in the tree, so their distances do not matter.
func newTree(offer *inventory.Offer, flat bool) (root *bundle.Node, index map[string]int) {
	index = make(map[string]int, len(offer.Devices))
	at := make([]bundle.Place, len(offer.Devices))
	for i, d := range offer.Devices {
		if index[d.Device.ID] = i; !flat {
			at[i] = bundle.PlaceOf(d.Parts()[0].Device)
		}
	}
	return bundle.NewTree(at), index
}

// request is a GetPreferredAllocation request from the kubelet, with the shares grouped by device.
type request struct {
	n      int
	must   map[string]int // keys are the shares that must be included; the value is always -1
	shares [][]string     // available shares by device index; those that must be included come first
	taken  []int          // number of unavailable shares by device index, or nil for a packed choice
}

// choice is the cheapest set of a certain number of shares. choice combines either two smaller choices, or one share and a choice
// with one share fewer.
type choice struct {
	cost  int64 // noChoice if there is no choice with this number of shares
	share string
	parts [2]*choice
}

// noChoice is the cost of an impossible choice.
const noChoice = -1

// prefer chooses n of the available shares. The choice includes all shares in the list "must". prefer chooses devices that are
// near each other. If Spread is set, prefer chooses the devices with the fewest shares in use instead. The same arguments always
// lead to the same result. If the request is invalid, the result is empty, and the kubelet makes its own choice.
func (r *Resource) prefer(offer *inventory.Offer, available, must []string, n int) []string {
	if n <= 0 {
		return nil
	}
	root, index := newTree(offer, r.Spread)
	best := r.request(index, offer, available, must, n).cheapest(root, 0)
	if n >= len(best) || best[n].cost == noChoice {
		return nil
	}
	chosen := slices.Sorted(slices.Values(best[n].appendTo(nil)))
	for _, share := range must {
		if _, ok := slices.BinarySearch(chosen, share); !ok {
			return nil
		}
	}
	return chosen
}

// request groups the shares by device. request ignores unknown shares.
func (r *Resource) request(index map[string]int, offer *inventory.Offer, available, must []string, n int) *request {
	q := &request{n: n, must: make(map[string]int), shares: make([][]string, len(offer.Devices))}
	for _, share := range must {
		q.must[share] = -1
	}
	// All slices share one allocation, because there may be thousands of devices.
	room := make([]string, len(available))
	for i, share := range available {
		id, ok := r.deviceID(share)
		device, known := index[id]
		if !ok || !known {
			continue
		}
		if q.shares[device] == nil {
			q.shares[device] = room[i : i : i+1]
		}
		q.shares[device] = append(q.shares[device], share)
	}
	for device, shares := range q.shares {
		if len(shares) > 1 {
			slices.SortFunc(shares, func(a, b string) int { return cmp.Or(q.must[a]-q.must[b], cmp.Compare(a, b)) })
			q.shares[device] = slices.Compact(shares)
		}
		if r.Spread {
			q.taken = append(q.taken, max(1, r.Shares)-len(q.shares[device]))
		}
	}
	q.removeBarred(offer)
	return q
}

// removeBarred removes the shares that Allocate would refuse, unless too few other shares would remain. These shares belong to
// devices whose pods have just ended. The kubelet offers them, because it learns of the end before metalplugd does.
func (q *request) removeBarred(offer *inventory.Offer) {
	left, barred := 0, make(map[int][]string)
	for device, shares := range q.shares {
		if offer.Devices[device].Barred != "" {
			shares = slices.DeleteFunc(slices.Clone(shares), func(share string) bool { return q.must[share] == 0 })
			barred[device] = shares
		}
		left += len(shares)
	}
	if left >= q.n {
		for device, shares := range barred {
			q.shares[device] = shares
		}
	}
}

// cheapest returns, for each possible number of shares below a node, the cheapest choice. The result is indexed by the number of
// shares. The parameter "above" is the depth of the node's parent.
func (q *request) cheapest(node *bundle.Node, above int) []choice {
	best := q.singles(node)
	for _, below := range node.Below {
		best = q.join(best, q.cheapest(below, node.Depth))
	}
	cost := int64(0)
	if above == 0 {
		cost = nodeCost
	}
	for k := range best {
		if k > 0 && best[k].cost != noChoice {
			best[k].cost += cost + steps(above, node.Depth)*int64(k)*int64(q.n-k)
		}
	}
	return best
}

// steps returns the number of steps down the tree from one depth to another.
func steps(from, to int) int64 {
	switch {
	case to < 2: // a NUMA node
		return 0
	case from < 2:
		return int64(to) + bridgeWay
	}
	return int64(to - from)
}

// singles returns the cheapest choices from the devices directly at a node, indexed by the number of shares. Each further
// share of a device costs more than the one before, so it is enough to take the cheapest shares.
func (q *request) singles(node *bundle.Node) []choice {
	best, fixed := make([]choice, 1, len(node.Leaves)+1), 0
	for _, l := range node.Leaves {
		for i, share := range q.shares[l.Index] {
			cost := steps(node.Depth, l.Depth)*int64(q.n-2*i-1) + int64(sameDeviceCost*i)
			if q.taken != nil {
				cost = int64(q.taken[l.Index] + i)
			}
			best = append(best, choice{cost: cost, share: share})
			fixed -= q.must[share]
		}
	}
	slices.SortStableFunc(best[1:], func(a, b choice) int {
		return cmp.Or(q.must[a.share]-q.must[b.share], cmp.Compare(a.cost, b.cost))
	})
	best = best[:min(len(best), q.n+1)]
	for k := range best[1:] {
		best[k+1].cost += best[k].cost
		best[k+1].parts[0] = &best[k]
	}
	for k := range best[:min(fixed, len(best))] {
		best[k].cost = noChoice
	}
	return best
}

// join combines the choices from two places. The result contains the cheapest combination for each number of shares, indexed by
// that number. If several choices have the same cost, join takes as many shares as possible from the first place.
func (q *request) join(first, second []choice) []choice {
	best := make([]choice, min(q.n, len(first)+len(second)-2)+1)
	for k := range best {
		cost, from := int64(noChoice), 0
		for i := min(k, len(first)-1); i >= max(0, k-len(second)+1); i-- {
			a, b := first[i].cost, second[k-i].cost
			if a != noChoice && b != noChoice && (cost == noChoice || a+b < cost) {
				cost, from = a+b, i
			}
		}
		best[k].cost = cost
		if cost != noChoice {
			best[k].parts = [2]*choice{&first[from], &second[k-from]}
		}
	}
	return best
}

// appendTo appends the shares in a choice.
func (c *choice) appendTo(shares []string) []string {
	if c == nil {
		return shares
	}
	if c.share != "" {
		shares = append(shares, c.share)
	}
	return c.parts[1].appendTo(c.parts[0].appendTo(shares))
}
