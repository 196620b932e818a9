// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"slices"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

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
