// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/control"
)

func TestRemedy(t *testing.T) {
	for reason, want := range map[string]string{
		`no resource takes it: t/tty: ID_MODEL is "FT232R", not "ft232*": upper and lower case differ`: "write the pattern as udev has it",
		`no resource takes it: nvidia.com/gpu: PCI_ID is "10DE:2330", not "1002:*"`:                    "compare match and exclude with: metalplugctl check --explain",
		"not complete: /dev/nvidia-uvm is missing":                                                     "nvidia-modprobe -u -c 0, and at boot nvidia-persistenced",
		"in use: nvme0n1p2 is mounted on /":                                                            "nothing, if this host is to have it",
		"link is down":                                                                                 "",
	} {
		if got := remedy(reason); got != want {
			t.Errorf("%s: %q", reason, got)
		}
	}
}

func TestReconnect(t *testing.T) {
	for complaint, want := range map[string]string{
		"waiting for the kubelet: look for /d/kubelet.sock: what is there is no socket":                           "remove it",
		"waiting for the kubelet: look for /d/kubelet.sock: no such file or directory":                            "systemctl start kubelet",
		"endpoint not listening: listen on /d/mp-x.sock: no such file or directory":                               "systemctl start kubelet",
		"endpoint not listening: listen on /d/mp-x.sock: permission denied":                                       "run metalplugd as root",
		"endpoint not listening: listen on /d/mp-x.sock: read-only file system":                                   "remove device_plugins from [paths]",
		"endpoint not registered: connect to /d/kubelet.sock: connection refused":                                 "the socket is left over",
		"endpoint not registered: register a/b with the kubelet: no answer after 3s: is what listens there the …": "systemctl restart kubelet",
		"endpoint not registered: register a/b with the kubelet: hung up, or speaks another protocol: is what …":  "ss -xlp",
		"endpoint not registered: register a/b with the kubelet: the ResourceName \"a/b\" is invalid":             "give the resource another name",
		"endpoint not registered: register a/b with the kubelet: something that nobody has thought of":            "journalctl -u metalplugd",
		"": "journalctl -u metalplugd",
	} {
		if got := reconnect(complaint); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q", complaint, got)
		}
	}
}

// TestWithheld: one finding a reason, and none of what the host uses.
func TestWithheld(t *testing.T) {
	missing := control.Device{Class: "gpu", Reason: "not complete: /dev/nvidia-uvm is missing"}
	d := &doctor{devices: []control.Device{
		missing,
		{Class: "nvme", Reason: "no resource of class nvme is configured"}, // off until the operator names them
		{Class: "fpga", Reason: "no resource of class fpga is configured"},
		{Class: "nvme", Reason: "in use: nvme0n1p2 is mounted on /"},
		{Class: "gpu", Reason: "a display of driver ast, no GPU"},
		{Class: "gpu", Resource: "nvidia.com/gpu", Health: "Unhealthy", Reason: "not complete: offered, and told of elsewhere"},
		missing,
	}}
	want := []finding{
		{
			levelWarn, "devices", "1 of class fpga not offered: no resource of class fpga is configured",
			"add a [[resource]] of that class",
		},
		{levelFail, "devices", "2 of class gpu not offered: not complete: /dev/nvidia-uvm is missing", "nvidia-modprobe -u -c 0, and at boot nvidia-persistenced"},
	}
	if got := d.withheld("devices"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}
