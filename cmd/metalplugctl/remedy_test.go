// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"testing"

	"github.com/metalplug/metalplug/daemon/control"
)

func TestRemedy(t *testing.T) {
	for reason, want := range map[string]string{
		`no resource takes it: nvidia.com/gpu: PCI_ID is "10DE:2330", not "10de:*"`:        "upper and lower case differ: write the pattern as udev has it",
		`no resource takes it: nvidia.com/gpu: PCI_ID is "10DE:2330", not "1002:*|10de:*"`: "upper and lower case differ: write the pattern as udev has it",
		`no resource takes it: nvidia.com/gpu: PCI_ID is "10DE:2330", not "1002:*"`:        "compare match and exclude with: metalplugctl check --explain",
		`no resource takes it: nvidia.com/gpu: PCI_ID is "10DE:2330", not "["`:             "compare match and exclude with: metalplugctl check --explain",
		"not complete: /dev/nvidia-uvm is missing":                                         "nvidia-modprobe -u -c 0, and at boot nvidia-persistenced",
		"in use: nvme0n1p2 is mounted on /":                                                "nothing, if this host is to have it",
		"link is down":                                                                     "",
	} {
		if got := remedy(reason); got != want {
			t.Errorf("%s: %q", reason, got)
		}
	}
}

// TestWithheld: one finding a reason, and none of what the host uses.
func TestWithheld(t *testing.T) {
	missing := control.Device{Class: "gpu", Reason: "not complete: /dev/nvidia-uvm is missing"}
	d := &doctor{devices: []control.Device{
		missing,
		{Class: "nvme", Reason: "no resource of class nvme is configured"},
		{Class: "nvme", Reason: "in use: nvme0n1p2 is mounted on /"},
		{Class: "gpu", Reason: "a display of driver ast, no GPU"},
		{Class: "gpu", Resource: "nvidia.com/gpu", Health: "Unhealthy", Reason: "not complete: offered, and told of elsewhere"},
		missing,
	}}
	want := []finding{
		{levelFail, "devices", "2 of class gpu not offered: not complete: /dev/nvidia-uvm is missing", "nvidia-modprobe -u -c 0, and at boot nvidia-persistenced"},
		{
			levelWarn, "devices", "1 of class nvme not offered: no resource of class nvme is configured",
			"add a [[resource]] of that class: those of the configuration replace the ones that are offered without any",
		},
	}
	if got := d.withheld("devices"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}
