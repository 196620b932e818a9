// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// offerOf returns an offer of devices at the given sysfs paths below /sys/devices, with the IDs a, b, c, …
func offerOf(numa []int, paths ...string) *inventory.Offer {
	o := &inventory.Offer{}
	for i, path := range paths {
		o.Devices = append(o.Devices, &inventory.Status{
			Device:  &device.Device{ID: fmt.Sprintf("%c", 'a'+i), SysPath: "/sys/devices/" + path, NUMANode: numa[i]},
			Verdict: verdict.Verdict{Healthy: true},
		})
	}
	return o
}

// server is a machine with two sockets. Each has two root ports with a switch with two ports.
func server() *inventory.Offer {
	var paths []string
	var numa []int
	for socket := range 2 {
		for root := range 2 {
			for port := range 2 {
				paths = append(paths, fmt.Sprintf("pci0000:%d0/0000:%d0:0%d.0/0000:%d%d:00.0/0000:%d%d:0%d.0/0000:%d%d:00.0",
					socket, socket, root, socket, 1+root, socket, 3+root, port, socket, 5+2*root+port))
				numa = append(numa, socket)
			}
		}
	}
	return offerOf(numa, paths...)
}

func TestPreferPacked(t *testing.T) {
	all := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	tests := []struct {
		name            string
		available, must []string
		n               int
		want            []string
	}{
		{"more than there are", all, nil, 9, nil},
		{"none", all, nil, 0, nil},
		{"negative", all, nil, -1, nil},
		{"must is not available", []string{"a"}, []string{"b"}, 1, nil},
		{"must is more than wanted", all, []string{"a", "b"}, 1, nil},
		{"unknown ones are left out", []string{"a", "x", "b"}, nil, 2, []string{"a", "b"}},
		{"named twice", []string{"a", "a", "b"}, nil, 2, []string{"a", "b"}},
		{"must named twice", all, []string{"a", "a"}, 2, []string{"a", "b"}},
	}
	r := Resource{Name: "example.org/x"}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := r.prefer(server(), test.available, test.must, test.n); !slices.Equal(got, test.want) {
				t.Errorf("prefer(%v, %v, %d) = %v, want %v", test.available, test.must, test.n, got, test.want)
			}
		})
	}
}

// cost computes the cost that prefer minimises. It uses the simplest method.
func cost(o *inventory.Offer, choice []string) (sum int64) {
	nodes := make(map[int]bool)
	for i, id := range choice {
		a := o.Find(id).Device
		nodes[a.NUMANode] = true
		for _, other := range choice[:i] {
			b := o.Find(other).Device
			from, to := bundle.PlaceOf(a).Path, bundle.PlaceOf(b).Path
			common := 0
			for common < min(len(from), len(to)) && from[common] == to[common] {
				common++
			}
			if sum += int64(len(from) + len(to) - 2*common); common == 0 {
				sum += 2 * bridgeWay
			}
		}
	}
	return int64(len(nodes))*nodeCost + sum
}

// TestPreferPackedIsOptimal compares the result with the best of all choices, on random machines.
func TestPreferPackedIsOptimal(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		o := randomMachine(random, 2+random.IntN(9))
		var all []string
		for _, d := range o.Devices {
			all = append(all, d.Device.ID)
		}
		must := slices.Clone(all[:random.IntN(3)])
		n := max(1, len(must)) + random.IntN(len(all)-max(1, len(must))+1)
		best := int64(-1)
		for mask := range 1 << len(all) {
			var choice []string
			for i := range all {
				if mask&(1<<i) != 0 {
					choice = append(choice, all[i])
				}
			}
			missing := slices.ContainsFunc(must, func(id string) bool { return !slices.Contains(choice, id) })
			if len(choice) != n || missing {
				continue
			}
			if c := cost(o, choice); best < 0 || c < best {
				best = c
			}
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		got := (&Resource{}).prefer(o, all, must, n)
		if len(got) != n || slices.ContainsFunc(must, func(id string) bool { return !slices.Contains(got, id) }) {
			t.Fatalf("%v chosen, want %d with %v", got, n, must)
		}
		if c := cost(o, got); c != best {
			t.Fatalf("%v costs %d, the best choice %d", got, c, best)
		}
	}
}

func randomMachine(random *rand.Rand, n int) *inventory.Offer {
	var paths []string
	var numa []int
	nodes := []int{random.IntN(3) - 1, random.IntN(3) - 1, random.IntN(3) - 1} // NUMA nodes of the bridges
	for i := range n {
		bridge := random.IntN(3)
		paths = append(paths, fmt.Sprintf("pci0000:%d0/0000:%d0:0%d.0/0000:%d1:0%d.0/0000:%d2:%02x.0",
			bridge, bridge, random.IntN(2), bridge, random.IntN(2), bridge, i))
		numa = append(numa, nodes[bridge])
	}
	return offerOf(numa, paths...)
}

// The choice is the same as if shares were chosen one by one, each from the device with the fewest used shares.
func TestSpreadEqualsSingleChoices(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	o := offerOf(make([]int, 8), make([]string, 8)...)
	for range 500 {
		var free []string
		taken := make(map[string]int)
		for range random.IntN(30) {
			device := o.Devices[random.IntN(8)].Device.ID
			taken[device] = random.IntN(4)
		}
		for _, d := range o.Devices {
			for n := taken[d.Device.ID]; n < 4; n++ {
				free = append(free, fmt.Sprintf("%s::%d", d.Device.ID, n))
			}
		}
		n := 1 + random.IntN(len(free))
		var want []string
		for range n {
			next := o.Devices[0].Device.ID
			for _, d := range o.Devices {
				if taken[d.Device.ID] < taken[next] {
					next = d.Device.ID
				}
			}
			want = append(want, fmt.Sprintf("%s::%d", next, taken[next]))
			taken[next]++
		}
		slices.Sort(want)
		random.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
		if got := (&Resource{Shares: 4, Spread: true}).prefer(o, free, nil, n); !slices.Equal(got, want) {
			t.Fatalf("%d of %v: %v, want %v", n, free, got, want)
		}
	}
}

// The kubelet considers a device free as soon as its pod is gone. metalplugd learns this later.
func TestPreferOmitsUncleared(t *testing.T) {
	offer := &inventory.Offer{Devices: []*inventory.Status{
		{Device: &device.Device{ID: "a", NUMANode: 0}, Verdict: verdict.Verdict{Barred: "being cleared after the last pod"}},
		{Device: &device.Device{ID: "b", NUMANode: 1}},
		{Device: &device.Device{ID: "c", NUMANode: 0}, Verdict: verdict.Verdict{Reserved: "the disk contains ext4", Barred: "the disk contains ext4"}},
		{Device: &device.Device{ID: "d", NUMANode: 0}, Verdict: verdict.Verdict{Reserved: "the disk contains ext4"}},
	}}
	all := []string{"a", "b", "c", "d"}
	for _, test := range []struct {
		must []string
		n    int
		want []string
	}{
		{nil, 1, []string{"d"}},
		{nil, 2, []string{"b", "d"}},
		{nil, 3, []string{"a", "c", "d"}}, // Allocate reports that there are not enough devices
		{[]string{"a"}, 2, []string{"a", "d"}},
	} {
		if got := (&Resource{}).prefer(offer, all, test.must, test.n); !slices.Equal(got, test.want) {
			t.Errorf("%d with %v: %v, want %v", test.n, test.must, got, test.want)
		}
	}
}
