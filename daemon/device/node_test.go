// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// anyNode returns a rule that takes every device with a node.
func anyNode(match map[string]string) []device.Rule {
	return []device.Rule{{Resource: "test/node", Class: &device.Generic, Match: match}}
}

func TestNodeID(t *testing.T) {
	id := func(u udev.Device) string {
		t.Helper()
		all, err := device.Generic.Identify(&device.Host{Tree: sysfs.Tree{Sys: t.TempDir()}}, u)
		if err != nil {
			t.Fatal(err)
		}
		return all[0].ID
	}
	made := func(subsystem, node string, properties ...string) udev.Device {
		u := udev.Device{Subsystem: subsystem, SysPath: "/sys/devices/x/" + node, DevNode: "/dev/" + node}
		for _, p := range properties {
			key, value, _ := strings.Cut(p, "=")
			u.Properties = u.Properties.With(key, value)
		}
		return u
	}
	for _, test := range []struct {
		device udev.Device
		want   string
	}{
		{made("input", "input/event3", "ID_SERIAL=Acme_Pad_1", "ID_SERIAL_SHORT=1", "ID_USB_INTERFACE_NUM=01"), "node-Acme_Pad_1-if01-event"},
		{made("input", "input/mouse0", "ID_SERIAL=Acme_Pad_1", "ID_SERIAL_SHORT=1", "ID_USB_INTERFACE_NUM=01"), "node-Acme_Pad_1-if01-mouse"},
		{made("usb", "bus/usb/001/004", "ID_SERIAL=Acme_Pad_1", "ID_SERIAL_SHORT=1"), "node-Acme_Pad_1"},
		{made("drm", "dri/renderD128", "ID_PATH=pci-0000:00:02.0"), "node-pci-0000:00:02.0-renderD"},
		{made("drm", "dri/card0", "ID_PATH=pci-0000:00:02.0"), "node-pci-0000:00:02.0-card"},
		{made("block", "vdb", "ID_PATH=pci-0000:00:05.0", "ID_SERIAL=disk1"), "node-pci-0000:00:05.0"},
		{made("block", "dm-3", "DM_UUID=CRYPT-PLAIN-data", "DM_NAME=data"), "node-CRYPT-PLAIN-data"},
		{made("block", "md0", "MD_UUID=d9b3:4f00:1234:5678"), "node-d9b3:4f00:1234:5678"},
		{made("misc", "fuse"), "node-fuse"},
	} {
		if got := id(test.device); got != test.want {
			t.Errorf("the ID of %s is %q, want %q", test.device.DevNode, got, test.want)
		}
	}
	long := id(made("misc", strings.Repeat("very/long/", 409)+"name"))
	if len(long) > longestID {
		t.Errorf("a name of 4 KiB makes an ID of %d bytes", len(long))
	}
}

func TestNodeIsThere(t *testing.T) {
	h, devices := loadMachine(t, "node-virtual")
	d := devices[len(devices)-1]
	if err := device.Generic.Health(h, device.Device{Udev: &d}); err != nil {
		t.Errorf("health of %s: %v", d.DevNode, err)
	}
	d.DevNode = "/dev/gone"
	if err := device.Generic.Health(h, device.Device{Udev: &d}); err == nil {
		t.Error("a device without its node is healthy")
	}
}
