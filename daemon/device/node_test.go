// SPDX-License-Identifier: Apache-2.0

package device

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/udev"
)

// anyNode is a rule that takes whatever has a node.
func anyNode(match map[string]string) []Rule {
	return []Rule{{Resource: "test/node", Class: &Generic, Match: match}}
}

func TestNode(t *testing.T) {
	const disk = `node-WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF "WDC WD40EFRX-68N32N0"` + "\n"
	const diskNode = "  /dev/sda = /dev/disk/by-id/ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF"
	const part = `node-WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF-part1 "WDC WD40EFRX-68N32N0"` + "\n"
	const partNode = "  /dev/sda1 = /dev/disk/by-id/ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF-part1"
	subsystem := func(name string) []Rule { return anyNode(map[string]string{"SUBSYSTEM": name}) }
	node := func(name string) []Rule { return anyNode(map[string]string{"DEVNAME": name}) }
	testSights(t, []sight{
		{name: "serial adapters", recording: "node-serial", rules: anyNode(nil), want: `
			node-FTDI_FT232R_USB_UART_A50285BI-if00 "FT232R USB UART"
			  /dev/ttyUSB0 = /dev/serial/by-id/usb-FTDI_FT232R_USB_UART_A50285BI-if00-port0
			node-MOXA_UPort_1250_TAFBB1012345-if00-port1 "UPort 1250"
			  /dev/ttyUSB2 = /dev/serial/by-id/usb-MOXA_UPort_1250_TAFBB1012345-if00-port1
			node-pci-0000:00:14.0-usb-0:4:1.0-if00 "USB Serial"
			  /dev/ttyUSB3 = /dev/serial/by-path/pci-0000:00:14.0-usb-0:4:1.0-port0`},
		{name: "two nodes of a camera", recording: "node-camera", rules: anyNode(nil), want: `
			node-046d_HD_Pro_Webcam_C920_6B7F3E5F-if00-video-index0 "HD Pro Webcam C920"
			  /dev/video0 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index0
			node-046d_HD_Pro_Webcam_C920_6B7F3E5F-if00-video-index1 "HD Pro Webcam C920"
			  /dev/video1 = /dev/v4l/by-id/usb-046d_HD_Pro_Webcam_C920_6B7F3E5F-video-index1`},
		{name: "no hardware", recording: "node-virtual", rules: subsystem("misc"), want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			node-kvm
			  /dev/kvm
			node-net-tun
			  /dev/net/tun
			node-vfio-vfio
			  /dev/vfio/vfio
			node-vhost-net
			  /dev/vhost-net`},
		{name: "VFIO group", recording: "node-virtual", rules: subsystem("vfio"), want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			node-vfio-0000:41:00.0 numa2
			  /dev/vfio/37
			  /dev/vfio/vfio`},
		{name: "VFIO group without its container", recording: "node-virtual", edits: []string{"N: vfio/vfio", "N: other"}, rules: subsystem("vfio"), want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node
			node-vfio-0000:41:00.0 numa2
			  held back: not complete: /dev/vfio/vfio is missing`},
		{name: "disk in use", recording: "node-disk", rules: node("/dev/sda"), want: disk + "  held back: in use: it has partitions (sda1)\n" + diskNode},
		{name: "the other way to it", recording: "node-disk", rules: node("/dev/sg0"), want: `
			node-sg0
			  held back: in use: it has partitions (sda1)
			  /dev/sg0`},
		{name: "partition", recording: "node-disk", rules: node("/dev/sda1*"), want: part +
			"  held back: not for containers: a partition: name it by DEVNAME if it is meant\n" + partNode},
		{name: "partition by name", recording: "node-disk", rules: node("/dev/sda1"), want: part + partNode},
		{name: "partition by name, mounted", recording: "node-disk", rules: node("/dev/sda1"), edits: []string{
			"F: /proc/self/mountinfo=", `F: /proc/self/mountinfo=22 1 8:1 / /srv rw - ext4 /dev/sda1 rw\n`,
		}, want: part + "  held back: in use: sda1 is mounted on /srv; not for containers: a partition: name it by DEVNAME if it is meant\n" + partNode},
		{name: "partition of a disk with a holder", recording: "node-disk", rules: node("/dev/sda1"), edits: []string{
			"A: size=7814037168", "A: holders/md127/x=\nA: size=7814037168",
		}, want: part + "  held back: in use: sda is part of md127; not for containers: a partition: name it by DEVNAME if it is meant\n" + partNode},
		{name: "partition of NVMe", recording: "nvme-root", rules: node("/dev/nvme0n1p1"), want: `
			nvme-eui.01000000010000005cd2e4a1b2c35551 "INTEL SSDPE2KX010T8"
			  held back: no resource of class nvme is configured
			(nvme0n1p1)
			  held back: not for containers: the node of an NVMe partition reaches the whole namespace (NVME_IOCTL_IO_CMD)`},
		{name: "NVMe controller", recording: "nvme", rules: node("/dev/nvme2"), want: `
			(nvme2)
			  held back: not for containers: /dev/nvme2 reaches namespaces past every check: offer those with class nvme
			nvme-eui.36344830545001230025384300000001 "SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q" numa1
			  held back: no resource of class nvme is configured`},
		{name: "management engine of an FPGA", recording: "fpga-dfl", rules: node("/dev/dfl-fme.0"), want: `
			(dfl-fme.0)
			  held back: not for containers: /dev/dfl-fme.0 programs the whole card: offer its ports with class fpga
			fpga-0000:3b:00.0-port0 "DFL port, accelerator d8424dc4a4a3c413f89e433683f9040b" numa1
			  held back: no resource of class fpga is configured`},
	})
}

func TestNodeID(t *testing.T) {
	device := func(subsystem, node string, properties ...string) udev.Device {
		u := udev.Device{Subsystem: subsystem, SysPath: "/sys/devices/x/" + node, DevNode: "/dev/" + node, Properties: map[string]string{}}
		for _, p := range properties {
			key, value, _ := strings.Cut(p, "=")
			u.Properties[key] = value
		}
		return u
	}
	for _, test := range []struct {
		device udev.Device
		want   string
	}{
		{device("input", "input/event3", "ID_SERIAL=Acme_Pad_1", "ID_SERIAL_SHORT=1", "ID_USB_INTERFACE_NUM=01"), "node-Acme_Pad_1-if01-event"},
		{device("input", "input/mouse0", "ID_SERIAL=Acme_Pad_1", "ID_SERIAL_SHORT=1", "ID_USB_INTERFACE_NUM=01"), "node-Acme_Pad_1-if01-mouse"},
		{device("usb", "bus/usb/001/004", "ID_SERIAL=Acme_Pad_1", "ID_SERIAL_SHORT=1"), "node-Acme_Pad_1"},
		{device("drm", "dri/renderD128", "ID_PATH=pci-0000:00:02.0"), "node-pci-0000:00:02.0-renderD"},
		{device("drm", "dri/card0", "ID_PATH=pci-0000:00:02.0"), "node-pci-0000:00:02.0-card"},
		{device("block", "vdb", "ID_PATH=pci-0000:00:05.0", "ID_SERIAL=disk1"), "node-pci-0000:00:05.0"},
		{device("block", "dm-3", "DM_UUID=CRYPT-PLAIN-data", "DM_NAME=data"), "node-CRYPT-PLAIN-data"},
		{device("block", "md0", "MD_UUID=d9b3:4f00:1234:5678"), "node-d9b3:4f00:1234:5678"},
		{device("misc", "fuse"), "node-fuse"},
	} {
		if got := nodeID(&Host{Sys: t.TempDir()}, test.device); got != test.want {
			t.Errorf("nodeID(%s) = %q, want %q", test.device.DevNode, got, test.want)
		}
	}
	long := nodeID(&Host{Sys: t.TempDir()}, device("misc", strings.Repeat("very/long/", 409)+"name"))
	if len(long) > idSize {
		t.Errorf("a name of 4 KiB makes an ID of %d bytes", len(long))
	}
}

func TestNodeIsThere(t *testing.T) {
	h, devices := recorded(t, "node-virtual")
	d := devices[len(devices)-1]
	if err := nodeHealth(h, Device{Udev: d}); err != nil {
		t.Errorf("health of %s: %v", d.DevNode, err)
	}
	d.DevNode = "/dev/gone"
	if err := nodeHealth(h, Device{Udev: d}); err == nil {
		t.Error("a device without its node is healthy")
	}
	if _, err := nodeIdentify(h, udev.Device{SysPath: d.SysPath}); err == nil {
		t.Error("a device without a node was identified")
	}
}
