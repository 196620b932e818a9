// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestShort(t *testing.T) {
	for path, want := range map[string]string{
		"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0":             "0000:01:00.0",
		"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0":  "0000:01:00.0/nvme/nvme0",
		"/sys/devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n1":      "virtual/nvme-subsystem/nvme-subsys3/nvme3n1",
		"/sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/ttyUSB0": "0000:00:14.0/usb1/1-2/1-2:1.0/ttyUSB0",
	} {
		if got := shortPath(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestFirst(t *testing.T) {
	for _, c := range []struct {
		want  string
		nodes []string
	}{{"-", nil}, {"/dev/a", []string{"/dev/a"}}, {"/dev/a +2", []string{"/dev/a", "/dev/b", "/dev/c"}}} {
		if got := firstNode(c.nodes); got != c.want {
			t.Errorf("%q: %s, want %s", c.nodes, got, c.want)
		}
	}
}

func TestPCI(t *testing.T) {
	for address, want := range map[string]string{"": "-", "0000:3b:00.0": "3b:00.0", "10000:01:00.0": "10000:01:00.0"} {
		if got := pciAddress(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

func TestNUMA(t *testing.T) {
	for node, want := range map[int]string{-1: "-", 0: "0", 7: "7"} {
		if got := numaNode(node); got != want {
			t.Errorf("%d: %s, want %s", node, got, want)
		}
	}
}
