// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/verdict"
)

func BenchmarkPatchOneOf10000(b *testing.B) {
	o := &Offer{}
	for i := range 10_000 {
		o.Devices = append(o.Devices, &Status{Device: &device.Device{ID: fmt.Sprintf("node-W%06d", i)}, Verdict: verdict.Verdict{Healthy: true}})
	}
	s := &Status{Device: o.Devices[5000].Device}
	changed := map[string]*Status{s.Device.ID: s}
	b.ReportAllocs()
	for b.Loop() {
		if next := o.patch(changed); next.Devices[5000] != s || next.Listed == o.Listed {
			b.Fatal("the change is not in it")
		}
	}
}
