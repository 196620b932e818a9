// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// TestTaker checks that Taker finds a given rule that would take a device. It must find no rule for a device that this host
// uses, or that no rule may take.
func TestTaker(t *testing.T) {
	usual := []device.Rule{
		{Resource: "t/gpu", Class: &device.GPU},
		{Resource: "t/nvme", Class: &device.NVMe},
		{Resource: "t/tty", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "tty"}},
		{Resource: "t/disk", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "block", "DEVTYPE": "disk"}},
		{Resource: "t/controller", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "nvme"}},
	}
	for _, c := range []struct {
		name, recording, node, want string
	}{
		{"a drive", "nvme", "/dev/nvme2n1", "t/nvme"},
		{"a controller", "nvme", "/dev/nvme2", "not for containers: /dev/nvme2 bypasses the namespace checks: offer the namespaces with class nvme"},
		{"a serial adapter", "node-serial", "/dev/ttyUSB0", "t/tty"},
		{"a disk that is in use", "node-disk", "/dev/sda", "not empty: partitions (sda1)"},
		{"another way to it", "node-disk", "/dev/sg0", "no rule matches the device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, devices := loadMachine(t, c.recording)
			i := slices.IndexFunc(devices, func(u udev.Device) bool { return u.DevNode == c.node })
			if i < 0 {
				t.Fatalf("the recording has no %s", c.node)
			}
			r, err := device.Explain(h, nil, devices[i])[0].Taker(h, usual)
			got := fmt.Sprint(err)
			if r != nil {
				got = r.Resource
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
