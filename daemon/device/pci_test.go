// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"slices"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestPCIHealth(t *testing.T) {
	const gpu = `GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a "NVIDIA H100 80GB HBM3" numa0`
	const nodes = "\n  /dev/nvidia3\n  /dev/nvidiactl\n  /dev/nvidia-uvm\n  /dev/nvidia-uvm-tools" +
		"\n  NVIDIA_VISIBLE_DEVICES=GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a"
	const silent = "\n  sick: the PCI configuration space does not answer: the device has fallen off the bus"
	const disk = `nvme-eui.36344830545001230025384300000001 "SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q" numa1`
	const diskNode = "\n  /dev/nvme2n1 = /dev/disk/by-id/nvme-eui.36344830545001230025384300000001"
	testSights(t, []sight{
		{name: "well", recording: "gpu-nvidia", want: gpu + nodes},
		{name: "off the bus", recording: "gpu-nvidia", edits: []string{"config=de10", "config=ffff"}, want: gpu + silent + nodes},
		{name: "off the bus, its link too", recording: "gpu-nvidia", edits: []string{
			"config=de10", "config=ffff", "current_link_width=16", "current_link_width=63",
		}, want: gpu + silent + nodes},
		{name: "asleep, so not asked", recording: "gpu-nvidia", edits: []string{
			"config=de10", "config=ffff", "runtime_status=active", "runtime_status=suspended",
			"current_link_width=16", "current_link_width=8",
		}, want: gpu + nodes},
		{name: "virtual", recording: "gpu-nvidia", edits: []string{"config=de103023", "config=ffffffff06041000"}, want: gpu + nodes},
		{name: "virtual, off the bus", recording: "gpu-nvidia", edits: []string{"config=de103023", "config=ffffffffffffffff"}, want: gpu + silent + nodes},
		{name: "lanes lost", recording: "gpu-nvidia", edits: []string{"current_link_width=16", "current_link_width=8"}, want: gpu +
			"\n  warning: the PCIe link of 0000:18:00.0 has 8 of 16 lanes" + nodes},
		{name: "in a slot with fewer lanes", recording: "gpu-nvidia", edits: []string{
			"current_link_width=16", "current_link_width=8", `A: max_link_width=16\n` + "\nA: numa_node=0\\n\nL: driver=../../../bus", `A: max_link_width=8\n` + "\nL: driver=../../../bus",
		}, want: gpu + nodes},
		{name: "below a bridge of which the link is not known", recording: "gpu-nvidia", edits: []string{
			"current_link_width=16", "current_link_width=4", `A: max_link_width=16\n` + "\nA: numa_node=0\\n\nL: driver=../../../bus", "L: driver=../../../bus",
		}, want: gpu + "\n  warning: the PCIe link of 0000:18:00.0 has 4 of 16 lanes" + nodes},
		{name: "a link without lanes", recording: "gpu-nvidia", edits: []string{"current_link_width=16", "current_link_width=0"}, want: gpu + nodes},
		{name: "a bridge without a link", recording: "gpu-nvidia", edits: []string{"current_link_width=16", "current_link_width=8", "max_link_width=16", "max_link_width=255"}, want: gpu + nodes},
		{name: "errors", recording: "gpu-nvidia", edits: []string{"TOTAL_ERR_FATAL 0", "TOTAL_ERR_FATAL 3", "TOTAL_ERR_NONFATAL 0", "TOTAL_ERR_NONFATAL 12"}, want: gpu +
			"\n  counted: aer_dev_fatal of 0000:18:00.0 is 3\n  counted: aer_dev_nonfatal of 0000:18:00.0 is 12" + nodes},
		{name: "counters that cannot be read", recording: "gpu-nvidia", edits: []string{"TOTAL_ERR_FATAL 0", "TOTAL_ERR_FATAL x", "TOTAL_ERR_NONFATAL", "SUM"}, want: gpu + nodes},

		{name: "disk", recording: "nvme", edits: []string{"current_link_width=4", "current_link_width=2", "TOTAL_ERR_FATAL 0", "TOTAL_ERR_FATAL 1"}, want: disk +
			"\n  warning: the PCIe link of 0000:65:00.0 has 2 of 4 lanes\n  counted: aer_dev_fatal of 0000:65:00.0 is 1" + diskNode},
		{name: "disk off the bus", recording: "nvme", edits: []string{"A: max_link_width", "H: config=ffffffff\nA: max_link_width"}, want: disk + silent + diskNode},
		{name: "disk off the bus, as its driver knows", recording: "nvme", edits: []string{
			"A: max_link_width", "H: config=ffffffff\nA: max_link_width", "state=live", "state=dead",
		}, want: disk + "\n  sick: controller nvme2 is dead" + diskNode},
	})
}

// A namespace with several controllers and a function in a VFIO group are not below the PCI function.
func TestFunctions(t *testing.T) {
	for _, test := range []struct{ recording, function string }{
		{"nvme-multipath", "0000:02:00.0"},
		{"nvme", "0000:65:00.0"},
		{"node-virtual", "0000:41:00.0"},
		{"fpga-dfl", "0000:3b:00.0"},
		{"infiniband-mlx5", "0000:19:00.0"},
		{"gpu-amd", "0000:05:00.0"},
	} {
		h, devices := loadMachine(t, test.recording)
		found := false
		for _, s := range inspectAll(h, append(anyNode(map[string]string{"SUBSYSTEM": "vfio"}), everything...), devices) {
			for _, f := range s.Functions {
				found = found || device.FunctionIn(f) == f && f[len(f)-len(test.function):] == test.function
			}
			if len(s.Functions) > 0 && !slices.Contains(s.Functions, s.Device.Function()) {
				t.Errorf("%s: %s is placed at %q, want one of %v", test.recording, s.Device.ID, s.Device.Function(), s.Functions)
			}
		}
		if !found {
			t.Errorf("%s: no device is reached by %s", test.recording, test.function)
		}
	}
}

func TestCounterMark(t *testing.T) {
	for _, test := range []struct {
		before, now uint64
		fatal       bool
		want        string
	}{
		{0, 1, true, "1 or more fatal PCIe errors (aer_dev_fatal)"},
		{5, 14, true, "1 or more fatal PCIe errors (aer_dev_fatal)"},
		{5, 15, true, "10 or more fatal PCIe errors (aer_dev_fatal)"},
		{0, 1<<64 - 1, true, "10000000000000000000 or more fatal PCIe errors (aer_dev_fatal)"},
		{0, 700, false, "100 or more nonfatal PCIe errors (aer_dev_nonfatal)"},
	} {
		c := device.Counter{SysPath: "/sys/x", Name: device.NonfatalErrors, Value: test.now, Fatal: test.fatal}
		if test.fatal {
			c.Name = device.FatalErrors
		}
		want := device.Mark{SysPath: "/sys/x", Source: c.Name, Reason: test.want, Warning: !test.fatal}
		if got := c.Mark(test.before); got != want {
			t.Errorf("%d to %d: %+v, want %+v", test.before, test.now, got, want)
		}
	}
}
