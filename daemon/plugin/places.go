// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"slices"
	"sync"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// places keeps the order of an offer's devices from one request to the next. The zero value is ready. It is safe for concurrent
// use.
type places struct {
	mu   sync.Mutex
	last *order
}

// order is the devices of an offer by NUMA node, then by their paths on the tree of buses. Devices below one bridge
// follow one another. The common part of two paths is the least that two neighbors between them have in common.
type order struct {
	listed uint64
	at     map[string]int // the place of a device, by its ID
	stops  []stop
}

// stop is a device in that order.
type stop struct {
	index  int // in the offer
	numa   int
	path   []string
	common int // elements that the path has in common with that of the one before
}

// of returns the order of an offer. It takes some milliseconds for 10,000 devices after each change of the list, and next to
// nothing otherwise.
func (p *places) of(offer *inventory.Offer) *order {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil || p.last.listed != offer.Listed || len(p.last.stops) != len(offer.Devices) {
		p.last = newOrder(offer)
	}
	return p.last
}

func newOrder(offer *inventory.Offer) *order {
	o := &order{listed: offer.Listed, at: make(map[string]int, len(offer.Devices)), stops: make([]stop, len(offer.Devices))}
	for i, d := range offer.Devices {
		o.stops[i] = stop{index: i, numa: d.Device.NUMANode, path: PCIPath(d.Device.SysPath)}
	}
	slices.SortStableFunc(o.stops, func(a, b stop) int { return cmp.Or(cmp.Compare(a.numa, b.numa), slices.Compare(a.path, b.path)) })
	for i := range o.stops {
		o.at[offer.Devices[o.stops[i].index].Device.ID] = i
		if i > 0 {
			o.stops[i].common = commonDepth(o.stops[i-1].path, o.stops[i].path)
		}
	}
	return o
}

// together returns n of the available shares, of as many devices on one NUMA node. They are next to one another with the
// shortest way from the first to the last. It returns nil if no node has that many. It takes one pass over the devices.
func (o *order) together(r *Resource, offer *inventory.Offer, available []string, n int) []string {
	shares := make([]string, len(o.stops)) // by place, empty if not available
	for _, share := range available {
		id, ok := r.deviceID(share)
		at, known := o.at[id]
		if ok && known && !barred(offer.Devices[o.stops[at].index]) && (shares[at] == "" || share < shares[at]) {
			shares[at] = share
		}
	}
	row := make([]string, 0, len(o.stops)) // those that are available, in order
	ways := make([]int64, 0, len(o.stops)) // from the first of its node to each
	begin, last, shared := 0, -1, 0
	best, chosen := int64(-1), []string(nil)
	for at, s := range o.stops {
		shared = min(shared, s.common)
		switch {
		case shares[at] == "":
			continue
		case last < 0 || s.numa != o.stops[last].numa:
			begin, ways = len(row), append(ways, 0)
		default:
			ways = append(ways, ways[len(row)-1]+steps(len(s.path), len(o.stops[last].path), shared))
		}
		row = append(row, shares[at])
		last, shared = at, len(s.path)
		if first := len(row) - n; first >= begin && (best < 0 || ways[len(row)-1]-ways[first] < best) {
			best, chosen = ways[len(row)-1]-ways[first], row[first:]
		}
	}
	chosen = slices.Clone(chosen)
	slices.Sort(chosen)
	return chosen
}
