// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// TestEnv uses devices with and without a PCI function. The story container.txt covers the rest.
func TestEnv(t *testing.T) {
	var devices []*inventory.Status
	for _, d := range []*device.Device{
		{ID: "a", SysPath: "/sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1"},
		{ID: "b", SysPath: "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:02.0/drm/card0"},
		{ID: "c", SysPath: "/sys/devices/virtual/misc/fuse"},
	} {
		devices = append(devices, &inventory.Status{Device: d, Verdict: verdict.Verdict{Healthy: true}})
	}
	r := plugin.Resource{Name: resource, Variable: "IDS", Env: map[string]string{"PCI": "{pci}", "BOTH": "{id}@{pci}", "IDS2": "{id}"}}
	got, err := (&plugin.Endpoint{Resource: r, Host: &device.Host{}}).Answer(devices)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"IDS": "a,b,c", "IDS2": "a,b,c", "PCI": "0000:00:01.0,0000:3b:02.0,", "BOTH": "a@0000:00:01.0,b@0000:3b:02.0,c@",
	} {
		if got.GetEnvs()[name] != want {
			t.Errorf("%s is %q, want %q", name, got.GetEnvs()[name], want)
		}
	}
}
