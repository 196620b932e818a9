// SPDX-License-Identifier: Apache-2.0

package device_test

import "testing"

func TestAMDPartitions(t *testing.T) {
	const id, model = "gpu-4b1a2c3d5e6f7081", `"Aqua Vanjaram [Instinct MI300X]`
	const divided = "\n  held back: not for containers: divided (dpx) into partitions, which are offered instead"
	const silent = "\n  sick: the PCI configuration space does not answer: the device has fallen off the bus"
	const first = `
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:05:00.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:05:00.0-card
			  /dev/kfd
			`
	const second = `
			  /dev/dri/renderD129
			  /dev/dri/card2
			  /dev/kfd
			`
	whole := func(findings string) string { return id + " " + model + `" numa1` + findings + first }
	part := func(name, findings, nodes string) string {
		return id + "-" + name + " " + model + ", partition " + name + `" numa1` + findings + nodes
	}
	const other = `gpu-0fd630f1f29d0da9 "Aqua Vanjaram [Instinct MI300X]" numa1
			  /dev/dri/renderD136 = /dev/dri/by-path/pci-0000:26:00.0-render
			  /dev/dri/card9 = /dev/dri/by-path/pci-0000:26:00.0-card
			  /dev/kfd`
	const warning = "\n  warning: 2 bad pages of its memory could not be retired (gpu_vram_bad_pages)"
	const gone = "\n  held back: not complete: /dev/dri/renderD129 is missing\n"
	both := func(findings string) string {
		return part("dpx0", findings, first) + part("dpx1", findings, second)
	}
	testSights(t, []sight{
		{name: "two", recording: "gpu-amd-partitions", want: whole(divided) + both("") + other},
		{name: "with the number in the uppermost bits", recording: "gpu-amd-partitions", edits: []string{
			`location_id 1281\n`, `location_id 268436736\n`,
		}, want: whole(divided) + both("") + other},
		{name: "a function that is not the first", recording: "gpu-amd-partitions", edits: []string{
			"0000:05:00.0", "0000:05:00.1", `location_id 1281\n`, `location_id 268436737\n`, `location_id 1280\n`, `location_id 1281\n`,
			`current_compute_partition=DPX\n`, `current_compute_partition=CPX\n`, `unique_id=4b1a2c3d5e6f7081\n`, `unique_id=4b1a2c3d5e6f7082\n`,
		}, want: `
			gpu-4b1a2c3d5e6f7082 "Aqua Vanjaram [Instinct MI300X]" numa1
			  held back: not for containers: divided (cpx) into partitions, which are offered instead
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:05:00.1-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:05:00.1-card
			  /dev/kfd
			gpu-4b1a2c3d5e6f7082-cpx0 "Aqua Vanjaram [Instinct MI300X], partition cpx0" numa1
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:05:00.1-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:05:00.1-card
			  /dev/kfd
			gpu-4b1a2c3d5e6f7082-cpx1 "Aqua Vanjaram [Instinct MI300X], partition cpx1" numa1` + second + other},
		{name: "off the bus, with all its parts", recording: "gpu-amd-partitions", edits: []string{
			"H: config=0210a174\nA: available", "H: config=ffffffff\nA: available",
		}, want: whole(divided+silent) + both(silent) + other},
		{name: "not divided", recording: "gpu-amd-partitions", edits: []string{
			`current_compute_partition=DPX\n`, `current_compute_partition=SPX\n`,
		}, want: whole("") + other},
		{name: "a mode that is not known", recording: "gpu-amd-partitions", edits: []string{
			`current_compute_partition=DPX\n`, `current_compute_partition=UNKNOWN\n`,
		}, want: whole("") + other},
		{name: "being divided", recording: "gpu-amd-partitions", edits: []string{`domain 0\n`, `domain 7\n`}, want: whole(
			"\n  held back: not complete: divided (dpx) into partitions that the compute driver does not list") + other},
		{name: "a node that is not there yet", recording: "gpu-amd-partitions", edits: []string{"N: dri/renderD129", "N: dri/other"}, want: whole(divided) +
			part("dpx0", "", first) + part("dpx1", gone, "") + other},
		{name: "bad pages", recording: "gpu-amd-partitions", edits: []string{`0x00001000 : R\n`, `0x00001000 : F\n0x00000a1d : 0x00001000 : F\n`}, want: whole(
			divided+warning) + both(warning) + other},
	})
}
