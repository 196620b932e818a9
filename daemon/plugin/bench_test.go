// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// offerOfMany returns an offer with n PCI devices, on two sockets and with eight devices below each switch.
func offerOfMany(n int) (o *inventory.Offer, ids []string) {
	o = &inventory.Offer{}
	for i := range n {
		id, socket := fmt.Sprintf("gpu-%06d", i), i%2
		o.Devices = append(o.Devices, &inventory.Status{Verdict: verdict.Verdict{Healthy: true}, Device: &device.Device{
			ID: id, NUMANode: socket,
			SysPath: fmt.Sprintf("/sys/devices/pci0000:%02x/0000:%02x:%02x.0/0000:%02x:00.%d", socket, socket, i/16, i/16, i%16/2),
		}})
		ids = append(ids, id)
	}
	return o, ids
}

func benchmarkPrefer(b *testing.B, of int) {
	offer, ids := offerOfMany(of)
	r := Resource{Name: "example.org/gpu"}
	var p places
	b.ReportAllocs()
	for b.Loop() {
		if chosen := r.prefer(&p, offer, ids, nil, 8); len(chosen) != 8 {
			b.Fatalf("chosen: %v", chosen)
		}
	}
}

func BenchmarkPrefer8Of16(b *testing.B) { benchmarkPrefer(b, 16) }

func BenchmarkPrefer8Of1000(b *testing.B) { benchmarkPrefer(b, 1000) }

func BenchmarkPrefer8Of10000(b *testing.B) { benchmarkPrefer(b, 10_000) }

func BenchmarkListOf10000(b *testing.B) {
	offer, ids := offerOfMany(10_000)
	r := &Resource{Name: "example.org/gpu"}
	b.ReportAllocs()
	for b.Loop() {
		if list, _ := r.response(offer); len(list.Devices) != len(ids) {
			b.Fatalf("%d devices", len(list.Devices))
		}
	}
}
