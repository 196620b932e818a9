// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// A device that no rule takes, or that is not complete, is identified by its existing nodes. A container cannot get these
// nodes.
func TestNodesWithoutAllocation(t *testing.T) {
	no := func(class *device.Class) []device.Rule {
		return []device.Rule{{Resource: "t/x", Class: class, Exclude: map[string]string{"SUBSYSTEM": "*"}}}
	}
	for _, c := range []struct {
		name, recording string
		edits           []string
		rules           []device.Rule
		class           *device.Class
		want            string
	}{
		{"no rule", "gpu-nvidia", nil, nil, &device.GPU, "/dev/nvidia3 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools"},
		{"excluded", "gpu-nvidia", nil, no(&device.GPU), &device.GPU, "/dev/nvidia3 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools"},
		{"a node is missing", "gpu-nvidia", []string{"F: /dev/nvidia-uvm=\n", ""}, everything, &device.GPU, "/dev/nvidia3 /dev/nvidiactl"},
		{"its own is missing", "gpu-nvidia", []string{"F: /dev/nvidia3=\n", ""}, everything, &device.GPU, ""},
		{"all is there", "gpu-nvidia", nil, everything, &device.GPU, "/dev/nvidia3 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools"}, // also in the allocation
		{"an adapter", "infiniband-mlx5", nil, nil, &device.InfiniBand, "/dev/infiniband/uverbs0 /dev/infiniband/rdma_cm"},
		{"an adapter without the module", "infiniband-mlx5", []string{"N: infiniband/rdma_cm\n", ""}, everything, &device.InfiniBand, "/dev/infiniband/uverbs0"},
		{"a drive", "nvme-qemu", nil, no(&device.NVMe), &device.NVMe, "/dev/nvme0n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, devices := loadMachine(t, c.recording, c.edits...)
			for _, u := range devices {
				if device.ClassOf(u) != c.class {
					continue
				}
				s := device.Inspect(h, c.rules, &u)[0]
				var got []string
				for _, n := range s.Nodes {
					got = append(got, n.Container)
				}
				given := len(s.Allocation.Nodes) > 0
				if text := strings.Join(got, " "); text != c.want || given != (c.name == "all is there") {
					t.Errorf("%s: %q, want %q; given are %v", s.Device.ID, text, c.want, s.Allocation.Nodes)
				}
				return
			}
			t.Fatal("the recording has no such device")
		})
	}
}

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
