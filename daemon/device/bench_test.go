// SPDX-License-Identifier: Apache-2.0

package device_test

import "testing"

// BenchmarkLook inspects all devices of a recording, most of which belong to no class.
func BenchmarkLook(b *testing.B) {
	for _, name := range []string{"nvme", "gpu-nvidia", "infiniband-mlx5"} {
		b.Run(name, func(b *testing.B) {
			h, devices := loadMachine(b, name)
			b.ReportAllocs()
			for b.Loop() {
				if seen := lookAll(h, everything, devices); len(seen) == 0 {
					b.Fatal("nothing is seen")
				}
			}
		})
	}
}
