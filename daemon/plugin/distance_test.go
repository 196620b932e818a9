// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/plugin"
)

func TestDistanceOf(t *testing.T) {
	const device = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
	for _, test := range []struct {
		other   string
		oneNode bool
		want    plugin.Distance
	}{
		{"/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.1", true, plugin.PIX},
		{"/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/nvme/nvme0", true, plugin.PIX},
		{"/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0", true, plugin.PXB},
		{"/sys/devices/pci0000:15/0000:15:02.0/0000:20:00.0", true, plugin.PHB},
		{"/sys/devices/pci0000:48/0000:48:01.0/0000:49:00.0", true, plugin.NODE},
		{"/sys/devices/pci0000:48/0000:48:01.0/0000:49:00.0", false, plugin.SYS},
	} {
		if got := plugin.DistanceOf(plugin.PCIPath(device), plugin.PCIPath(test.other), test.oneNode); got != test.want {
			t.Errorf("%s: %s, want %s", test.other, got, test.want)
		}
	}
}
