// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/device"
)

// measureBundles measures the matching of a server with two sockets, eight switches, 16 GPUs, 16 HCAs and 32 disks. Half of the
// switches lack an HCA, so that some bundles contain devices of several switches. The floor computes the distance of each
// device from each GPU once.
func (b *bench) measureBundles() ([]result, error) {
	var items []bundle.Item
	for s := range 8 {
		for kind, n := range []int{2, 1 + 2*(s%2), 4} {
			for i := range n {
				items = append(items, bundle.Item{ID: fmt.Sprint(kind, s, i), Kind: kind, Place: bundle.Place{NUMA: s / 4, Path: []string{
					fmt.Sprintf("pci0000:%02x", 16*(s/2)), fmt.Sprintf("0000:%02x:%02x.0", 16*(s/2), 1+s%2), fmt.Sprintf("0000:%02x:%02x.0", 16*s+1, 4*kind+i),
				}}})
			}
		}
	}
	var ours, theirs samples
	var sets [][]bundle.Item
	for range b.countSamples(1000) {
		begun := time.Now()
		sets = bundle.Match(items, &device.Members{Counts: []int{1, 1, 2}, Near: "any"})
		ours = append(ours, time.Since(begun))
		begun = time.Now()
		for _, gpu := range items {
			for _, item := range items {
				if gpu.Kind == 0 && gpu.Place.Distance(item.Place) == "" {
					return nil, fmt.Errorf("%v and %v have no distance", gpu, item)
				}
			}
		}
		theirs = append(theirs, time.Since(begun))
	}
	what := fmt.Sprintf("%d bundles of %d devices, p99", len(sets), len(items))
	return []result{within(what, "ms", ours.percentile(99), 50).above(theirs.percentile(99)).of(len(ours))}, nil
}
