// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/device"
)

// server has two sockets with host bridges, each with two switches that have the same devices, given as counts of each
// kind.
func server(sockets, switches int, each ...int) (items []bundle.Item) {
	for s := range sockets * switches {
		for kind, n := range each {
			for i := range n {
				items = append(items, bundle.Item{
					ID: fmt.Sprintf("%d-%d-%d", kind, s, i), Kind: kind,
					Place: bundle.Place{NUMA: s / switches, Path: []string{
						fmt.Sprintf("pci0000:%02x", 16*s), fmt.Sprintf("0000:%02x:01.0", 16*s), fmt.Sprintf("0000:%02x:00.0", 16*s+1),
						fmt.Sprintf("0000:%02x:%02x.0", 16*s+2, 8*kind+i), fmt.Sprintf("0000:%02x:00.0", 16*s+3+4*kind+i),
					}},
				})
			}
		}
	}
	return items
}

func TestEachSetIsBelowOneSwitch(t *testing.T) {
	sets := bundle.Match(server(2, 2, 2, 2, 2), &device.Members{Counts: []int{1, 1, 1}, Near: "any"})
	if len(sets) != 8 {
		t.Fatalf("%d sets, want 8", len(sets))
	}
	for _, set := range sets {
		for _, item := range set[1:] {
			if !bundle.Within("switch", set[0].Place, item.Place) {
				t.Errorf("%s is far from %s", item.ID, set[0].ID)
			}
		}
	}
}

func TestDistance(t *testing.T) {
	at := func(numa int, sysPath string) bundle.Place {
		return bundle.PlaceOf(&device.Device{SysPath: "/sys/devices/" + sysPath, NUMANode: numa})
	}
	place := at(0, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0")
	for _, test := range []struct {
		other bundle.Place
		want  api.Distance
	}{
		{at(0, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.1"), api.PIX},
		{at(0, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/nvme/nvme0"), api.PIX},
		{at(0, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0"), api.PXB},
		{at(0, "pci0000:15/0000:15:02.0/0000:20:00.0"), api.PHB},
		{at(0, "pci0000:48/0000:48:01.0/0000:49:00.0"), api.NODE},
		{at(1, "pci0000:48/0000:48:01.0/0000:49:00.0"), api.SYS},
		{at(0, "virtual/misc/widget"), api.NODE},
	} {
		if got := place.Distance(test.other); got != test.want {
			t.Errorf("%v: %s, want %s", test.other, got, test.want)
		}
	}
}

// machine returns a random machine with at most eight devices.
func machine(r *rand.Rand, kinds int) (items []bundle.Item) {
	for i := range 1 + r.IntN(8) {
		item := bundle.Item{ID: fmt.Sprint(i), Kind: r.IntN(kinds), Place: bundle.Place{NUMA: -1}}
		if r.IntN(8) > 0 {
			host := r.IntN(3)
			item.NUMA = host / 2
			item.Path = []string{fmt.Sprint("pci", host)}
			for range r.IntN(4) {
				item.Path = append(item.Path, fmt.Sprint("bridge", r.IntN(2)))
			}
			item.Path = append(item.Path, fmt.Sprint("function", r.IntN(3)))
		}
		items = append(items, item)
	}
	return items
}

// distance returns the distance of two items, by the level of their lowest common node and then by its height.
func distance(all []bundle.Item, a, b bundle.Item) int {
	common := func(a, b bundle.Item) (n int) {
		for n < min(len(a.Path), len(b.Path)) && a.Path[n] == b.Path[n] {
			n++
		}
		return n
	}
	level := slices.IndexFunc(device.Nears, func(near string) bool { return bundle.Within(near, a.Place, b.Place) })
	if (a.NUMA < 0) != (b.NUMA < 0) {
		level = 3 // Match treats this as a separate group
	}
	height := 0
	for _, c := range all {
		switch above := common(a, b); {
		case level <= 1 && common(a, c) >= above:
			height = max(height, len(c.Path)-above)
		case level == 2 && c.NUMA == a.NUMA:
			height = max(height, len(c.Path))
		case level == 3:
			height = max(height, len(c.Path)+1)
		}
	}
	return 64*level + height
}

// best tries all choices of sets. It returns the largest number and the smallest sum of distances.
func best(all, left []bundle.Item, counts []int, near string) (sets, sum int) {
	for i, first := range left {
		if first.Kind != 0 {
			continue
		}
		extend(all, []bundle.Item{first}, slices.Delete(slices.Clone(left), i, i+1), counts, near, func(cost int, rest []bundle.Item) {
			n, more := best(all, rest, counts, near)
			if n, more = n+1, more+cost; n > sets || n == sets && more < sum {
				sets, sum = n, more
			}
		})
	}
	return sets, sum
}

func extend(all, set, left []bundle.Item, counts []int, near string, found func(cost int, rest []bundle.Item)) {
	for kind, wanted := range counts {
		has := 0
		for _, item := range set {
			if item.Kind == kind {
				has++
			}
		}
		if has == wanted {
			continue
		}
		for i, item := range left {
			last := set[len(set)-1]
			ordered := last.Kind != kind || len(set) == 1 || last.ID < item.ID
			if item.Kind == kind && ordered && (near == "any" || distance(all, set[0], item) < 64*(slices.Index(device.Nears, near)+1)) {
				extend(all, append(slices.Clone(set), item), slices.Delete(slices.Clone(left), i, i+1), counts, near, found)
			}
		}
		return
	}
	cost := 0
	for _, item := range set[1:] {
		cost += distance(all, set[0], item)
	}
	found(cost, left)
}

func TestNoChoiceIsBetter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	wanted := [][]int{{1, 1}, {1, 2}, {2, 1}, {1, 1, 1}, {1, 1, 2}, {3}, {2, 2}}
	for range 500 {
		counts := wanted[r.IntN(len(wanted))]
		items, near := machine(r, len(counts)), device.Nears[r.IntN(len(device.Nears))]
		sets, sum := bundle.Match(items, &device.Members{Counts: counts, Near: near}), 0
		seen := make(map[string]bool)
		for _, set := range sets {
			has := make([]int, len(counts))
			for _, item := range set {
				has[item.Kind]++
			}
			if !slices.Equal(has, counts) {
				t.Fatalf("a set %v of %v has %v, want %v", set, items, has, counts)
			}
			for i, item := range set {
				if seen[item.ID] {
					t.Fatalf("%s is in two sets", item.ID)
				}
				seen[item.ID] = true
				if i > 0 {
					sum += distance(items, set[0], item)
				}
				if !bundle.Within(near, set[0].Place, item.Place) {
					t.Fatalf("%v is not near %v to %v", item, near, set[0])
				}
			}
		}
		if n, least := best(items, items, counts, near); n != len(sets) || least != sum {
			t.Fatalf("%d sets with distance %d of %v with %v near %s, want %d with %d:\n%v", len(sets), sum, items, counts, near, n, least, sets)
		}
		again := slices.Clone(items)
		r.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
		if other := bundle.Match(again, &device.Members{Counts: counts, Near: near}); !reflect.DeepEqual(sets, other) {
			t.Fatalf("the order of %v matters: %v, not %v", items, sets, other)
		}
	}
}

// BenchmarkMatch uses 16 GPUs, 16 HCAs and 32 disks.
func BenchmarkMatch(b *testing.B) {
	items := server(2, 4, 2, 2, 4)
	for b.Loop() {
		bundle.Match(items, &device.Members{Counts: []int{1, 1, 2}, Near: "any"})
	}
}
