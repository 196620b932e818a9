// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"slices"
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

func TestNode(t *testing.T) {
	const disk = `node-WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF "WDC WD40EFRX-68N32N0"` + "\n"
	const diskNode = "  /dev/sda = /dev/disk/by-id/ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF"
	const part = `node-WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF-part1 "WDC WD40EFRX-68N32N0"` + "\n"
	const partNode = "  /dev/sda1 = /dev/disk/by-id/ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF-part1"
	subsystem := func(name string) []device.Rule { return anyNode(map[string]string{"SUBSYSTEM": name}) }
	node := func(name string) []device.Rule { return anyNode(map[string]string{"DEVNAME": name}) }
	// The node of a UFS host, in the place of the node of a disk. Its device has no subsystem.
	ufs := []string{"target0:0:0/0:0:0:0/scsi_generic/sg0", "ufs-bsg0/bsg/ufs-bsg0", "N: sg0", "N: bsg/ufs-bsg0", "scsi_generic", "bsg", "../0:0:0:0", "../ufs-bsg0"}
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
		{name: "disk in use", recording: "node-disk", rules: node("/dev/sda"), want: disk + "  held back: not empty: partitions (sda1)\n" + diskNode},
		{name: "the other way to it", recording: "node-disk", rules: node("/dev/sg0"), want: `
			node-sg0
			  held back: not empty: partitions (sda1); offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true
			  /dev/sg0`},
		{name: "the other way to it, by a pattern, while nothing is on it", recording: "node-disk", rules: node("/dev/sg*"), edits: []string{"A: partition=1", "A: other=1"}, want: `
			node-sg0
			  held back: offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true
			  /dev/sg0`},
		{name: "the other way to it, by name, while nothing is on it", recording: "node-disk", rules: node("/dev/sg0"), edits: []string{"A: partition=1", "A: other=1"}, want: `
			node-sg0
			  held back: offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true
			  /dev/sg0`},
		{name: "the other way to it, by name, and its data may be used", recording: "node-disk", rules: setAllowInUse(node("/dev/sg0")), want: `
			node-sg0
			  /dev/sg0`},
		{name: "UFS host by name", recording: "node-disk", edits: ufs, rules: node("/dev/bsg/ufs-bsg0"), want: `
			node-bsg-ufs-bsg0
			  held back: not empty: partitions (sda1); offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true
			  /dev/bsg/ufs-bsg0`},
		{name: "partition", recording: "node-disk", rules: node("/dev/sda1*"), want: part +
			"  held back: offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true\n" + partNode},
		{name: "partition by name", recording: "node-disk", rules: node("/dev/sda1"), want: part + "  held back: offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true\n" + partNode},
		{name: "partition by name, and its data may be used", recording: "node-disk", rules: setAllowInUse(node("/dev/sda1")), want: part + partNode},
		{name: "partition by a pattern, and its data may be used", recording: "node-disk", rules: setAllowInUse(node("/dev/sda1*")), want: part + "  held back: offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true\n" + partNode},
		{name: "partition of a resource that erases", recording: "node-disk", rules: addScrub(node("/dev/sda1")), want: part +
			"  held back: not for containers: test/node erases disks, and only a whole disk can be erased: match the disk itself, or set scrub = \"none\"\n" + partNode},
		{name: "another way to a disk, of a resource that erases", recording: "node-disk", rules: addScrub(node("/dev/sg0")), want: `
			node-sg0
			  held back: not for containers: test/node erases disks, and only a whole disk can be erased: match the disk itself, or set scrub = "none"
			  /dev/sg0`},
		{name: "partition by name, mounted", recording: "node-disk", rules: node("/dev/sda1"), edits: []string{
			"F: /proc/self/mountinfo=", `F: /proc/self/mountinfo=22 1 8:1 / /srv rw - ext4 /dev/sda1 rw\n`,
		}, want: part + "  held back: in use: sda1 is mounted on /srv; offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true\n" + partNode},
		{name: "partition of a disk with a holder", recording: "node-disk", rules: node("/dev/sda1"), edits: []string{
			"A: size=7814037168", "A: holders/md127/x=\nA: size=7814037168",
		}, want: part + "  held back: in use: sda is part of md127; offered only if a rule names it: unproven: metalplug does not read this node: match the whole disk, or match this node by DEVNAME and set allow_in_use = true\n" + partNode},
		{name: "partition of NVMe", recording: "nvme-root", rules: node("/dev/nvme0n1p1"), want: `
			nvme-eui.01000000010000005cd2e4a1b2c35551 "INTEL SSDPE2KX010T8"
			  held back: in use: nvme0n1p1 is mounted on /; no resource of class nvme is configured
			(nvme0n1p1)
			  held back: not for containers: the node of an NVMe partition reaches the whole namespace (NVME_IOCTL_IO_CMD)`},
		{name: "USB stick by its USB node", recording: "group-camera", rules: node("/dev/bus/usb/001/009"), edits: []string{
			"A: devpath=9.4", "E: ID_USB_INTERFACES=:080650:\nA: devpath=9.4",
		}, want: `
			(1-9.4)
			  held back: not for containers: /dev/bus/usb/001/009 bypasses the checks of its disk: offer the disk itself`},
		{name: "NVMe controller", recording: "nvme", rules: node("/dev/nvme2"), want: `
			(nvme2)
			  held back: not for containers: /dev/nvme2 bypasses the namespace checks: offer the namespaces with class nvme
			nvme-eui.36344830545001230025384300000001 "SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q" numa1
			  held back: no resource of class nvme is configured`},
		{name: "management engine of an FPGA", recording: "fpga-dfl", rules: node("/dev/dfl-fme.0"), want: `
			(dfl-fme.0)
			  held back: not for containers: /dev/dfl-fme.0 programs the whole card: offer its ports with class fpga
			fpga-0000:3b:00.0-port0 "DFL port, accelerator d8424dc4a4a3c413f89e433683f9040b" numa1
			  held back: no resource of class fpga is configured`},
	})
}

// Properties of the kernel identify some hardware for which udev has no rules.
func TestNodeOfTheKernel(t *testing.T) {
	subsystem := func(name string) []device.Rule { return anyNode(map[string]string{"SUBSYSTEM": name}) }
	testSights(t, []sight{
		{name: "work queues", recording: "node-idxd", rules: subsystem("dsa"), want: `
			node-dsa-0000:6a:01.0-wq1 numa0
			  /dev/dsa/wq0.1
			node-iax-0000:6a:02.0-wq0 numa0
			  /dev/iax/wq1.0`},
		{name: "a work queue that is disabled", recording: "node-idxd", edits: []string{
			`A: mode=shared\n` + "\n" + `A: state=enabled`, `A: mode=shared\n` + "\n" + `A: state=disabled`,
		}, rules: subsystem("dsa"), want: `
			node-dsa-0000:6a:01.0-wq1 numa0
			  held back: not complete: the state of work queue wq0.1 is disabled, not enabled
			  /dev/dsa/wq0.1
			node-iax-0000:6a:02.0-wq0 numa0
			  /dev/iax/wq1.0`},
		{name: "a work queue of the kernel", recording: "node-idxd", edits: []string{"type=user", "type=kernel"}, rules: subsystem("dsa"), want: `
			node-dsa-0000:6a:01.0-wq1 numa0
			  held back: not complete: the type of work queue wq0.1 is kernel, not user
			  /dev/dsa/wq0.1
			node-iax-0000:6a:02.0-wq0 numa0
			  held back: not complete: the type of work queue wq1.0 is kernel, not user
			  /dev/iax/wq1.0`},
		{name: "a work queue that says nothing", recording: "node-idxd", edits: []string{"A: type=user", "A: other=user"}, rules: subsystem("dsa"), want: `
			node-dsa-0000:6a:01.0-wq1 numa0
			  held back: not complete: work queue wq0.1: read /sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.1/type: gone: no such file or directory
			  /dev/dsa/wq0.1
			node-iax-0000:6a:02.0-wq0 numa0
			  held back: not complete: work queue wq1.0: read /sys/devices/pci0000:6a/0000:6a:02.0/iax1/wq1.0/type: gone: no such file or directory
			  /dev/iax/wq1.0`},
		{name: "work queues, numbered the other way", recording: "node-idxd", edits: []string{"wq0.1", "wq1.1", "dsa0", "dsa1", "wq1.0", "wq0.0", "iax1", "iax0"}, rules: subsystem("dsa"), want: `
			node-dsa-0000:6a:01.0-wq1 numa0
			  /dev/dsa/wq1.1
			node-iax-0000:6a:02.0-wq0 numa0
			  /dev/iax/wq0.0`},
		{name: "load balancers", recording: "node-dlb", rules: subsystem("dlb2"), want: `
			node-0000:6d:00.0-dlb numa0
			  /dev/dlb1
			node-0000:ec:00.0-dlb numa1
			  /dev/dlb0`},
		{name: "a load balancer off the bus", recording: "node-dlb", edits: []string{"H: config=86801027\nA: numa_node=1", "H: config=ffffffff\nA: numa_node=1"}, rules: subsystem("dlb2"), want: `
			node-0000:6d:00.0-dlb numa0
			  /dev/dlb1
			node-0000:ec:00.0-dlb numa1
			  sick: the PCI configuration space does not answer: the device has fallen off the bus
			  /dev/dlb0`},
		{name: "two of a kind in a function", recording: "node-dlb", rules: subsystem("ptp"), want: `
			node-0000:ed:00.0-ptp-1
			  /dev/ptp10
			node-0000:ed:00.0-ptp
			  /dev/ptp9`},
		{name: "HID", recording: "node-hid", rules: subsystem("hidraw"), want: `
			node-hid-0003-1050-0407-usb-0000:00:14.0-4-input0 "Yubico YubiKey OTP+FIDO+CCID"
			  /dev/hidraw0
			node-hid-0003-1050-0407-usb-0000:00:14.0-4-input1 "Yubico YubiKey OTP+FIDO+CCID"
			  /dev/hidraw1
			node-hid-0003-05e0-1900-S-N:4A1B-input0-ee6fd15d "Symbol Technologies, Inc, 2008 Symbol Bar Code Scanner"
			  /dev/hidraw5`},
		{name: "HID at another port", recording: "node-hid", rules: subsystem("hidraw"), edits: []string{"0000:00:14.0-4", "0000:00:14.0-3", "usb-0000:00:14.0-6", "usb-0000:00:14.0-1", "hidraw0", "hidraw9"}, want: `
			node-hid-0003-1050-0407-usb-0000:00:14.0-3-input0 "Yubico YubiKey OTP+FIDO+CCID"
			  /dev/hidraw9
			node-hid-0003-1050-0407-usb-0000:00:14.0-3-input1 "Yubico YubiKey OTP+FIDO+CCID"
			  /dev/hidraw1
			node-hid-0003-05e0-1900-S-N:4A1B-input0-ee6fd15d "Symbol Technologies, Inc, 2008 Symbol Bar Code Scanner"
			  /dev/hidraw5`},
		{name: "HID of which nothing is known", recording: "node-hid", rules: subsystem("hidraw"), edits: []string{"E: HID_", "E: X_"}, want: `
			node-hidraw0
			  /dev/hidraw0
			node-hidraw1
			  /dev/hidraw1
			node-hidraw5
			  /dev/hidraw5`},
		{name: "CAN", recording: "node-can", rules: subsystem("tty"), want: `
			node-CANable_canable.io_Nucleo_004500265734570A20-3ce72f7a "canable.io Nucleo"
			  /dev/ttyACM0 = /dev/serial/by-id/usb-CANable_canable.io_Nucleo_004500265734570A20363439-if00
			node-Acme_Dual_CAN_77-if00 "Dual CAN"
			  /dev/ttyACM1 = /dev/serial/by-id/usb-Acme_Dual_CAN_77-if00
			node-Acme_Dual_CAN_77-if02 "Dual CAN"
			  /dev/ttyACM2 = /dev/serial/by-id/usb-Acme_Dual_CAN_77-if02`},
		{name: "SGX", recording: "node-platform", rules: anyNode(map[string]string{"DEVNAME": "/dev/sgx_*"}), want: `
			node-sgx_enclave
			  /dev/sgx_enclave
			node-sgx_provision
			  /dev/sgx_provision`},
		{name: "TPM", recording: "node-platform", rules: subsystem("tpmrm"), want: `
			node-tpmrm0
			  /dev/tpmrm0`},
		{name: "FUSE and a socket", recording: "node-platform", rules: anyNode(map[string]string{"DEVNAME": "/dev/fuse|/dev/vhost-*"}), want: `
			node-fuse
			  /dev/fuse
			node-vhost-vsock
			  /dev/vhost-vsock`},
	})
}

func TestVFIO(t *testing.T) {
	rule := func(key, value string) []device.Rule {
		return anyNode(map[string]string{"SUBSYSTEM": "vfio", key: value})
	}
	const audio = "E: DRIVER=vfio-pci\nE: PCI_CLASS=40300"
	const audioDriver = "H: config=de108b22\nL: driver=../../../bus/pci/drivers/vfio-pci"
	testSights(t, []sight{
		{name: "QAT", recording: "node-vfio", rules: rule("PCI_ID", "8086:4941"), want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:6b:00.1 numa0
			  /dev/vfio/120
			  /dev/vfio/vfio`},
		{name: "QAT off the bus", recording: "node-vfio", rules: rule("PCI_ID", "8086:4941"), edits: []string{"config=86804149060410000000400b", "config=ffffffffffffffffffffffff"}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:6b:00.1 numa0
			  sick: the PCI configuration space does not answer: the device has fallen off the bus
			  /dev/vfio/120
			  /dev/vfio/vfio`},
		{name: "NVMe controllers", recording: "node-vfio", rules: rule("PCI_CLASS", "10802"), want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:81:00.0 numa1
			  /dev/vfio/37
			  /dev/vfio/vfio`},
		{name: "a group of another number", recording: "node-vfio", rules: rule("PCI_CLASS", "10802"), edits: []string{"vfio/37", "vfio/2", "iommu_groups/37", "iommu_groups/2"}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:81:00.0 numa1
			  /dev/vfio/2
			  /dev/vfio/vfio`},
		{name: "two functions", recording: "node-vfio", rules: rule("PCI_SLOT_NAME", "0000:c1:00.0"), want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:c1:00.0 numa1
			  /dev/vfio/9
			  /dev/vfio/vfio`},
		{name: "two functions, one of them of the host", recording: "node-vfio", rules: rule("PCI_SLOT_NAME", "0000:c1:00.0"), edits: []string{
			audio, "E: DRIVER=snd_hda_intel\nE: PCI_CLASS=40300", audioDriver, "H: config=de108b22\nL: driver=../../../bus/pci/drivers/snd_hda_intel",
		}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:c1:00.0 numa1
			  held back: not complete: 0000:c1:00.1, in the same IOMMU group, is bound to snd_hda_intel: bind it to vfio-pci too
			  /dev/vfio/9
			  /dev/vfio/vfio`},
		{name: "two functions, one without a driver", recording: "node-vfio", rules: rule("PCI_SLOT_NAME", "0000:c1:00.0"), edits: []string{
			audioDriver, "H: config=de108b22",
		}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:c1:00.0 numa1
			  /dev/vfio/9
			  /dev/vfio/vfio`},
		{name: "two functions, one off the bus", recording: "node-vfio", rules: rule("PCI_SLOT_NAME", "0000:c1:00.0"), edits: []string{"config=de108b22", "config=ffffffff"}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:c1:00.0 numa1
			  sick: the PCI configuration space does not answer: the device has fallen off the bus
			  /dev/vfio/9
			  /dev/vfio/vfio`},
		{name: "an empty group", recording: "node-vfio", rules: anyNode(map[string]string{"DEVNAME": "/dev/vfio/9"}), edits: []string{"iommu_groups/9", "iommu_groups/10"}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/10 with class node
			node-vfio-9
			  held back: not complete: IOMMU group 9 is empty
			  /dev/vfio/9
			  /dev/vfio/vfio`},
		{name: "without its container", recording: "node-vfio", rules: rule("PCI_ID", "8086:4941"), edits: []string{"N: vfio/vfio", "N: other"}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:6b:00.1 numa0
			  held back: not complete: /dev/vfio/vfio is missing`},
		{name: "without an IOMMU", recording: "node-vfio", rules: rule("PCI_CLASS", "B4000*"), edits: []string{"vfio/120", "vfio/noiommu-120"}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:6b:00.1 numa0
			  held back: offered only if a rule names it: the device has no IOMMU: a process that opens the device can reach all memory of the host
			  /dev/vfio/noiommu-120
			  /dev/vfio/vfio`},
		{name: "without an IOMMU, by its slot", recording: "node-vfio", rules: rule("PCI_SLOT_NAME", "0000:6b:00.1"), edits: []string{"vfio/120", "vfio/noiommu-120"}, want: `
			(0000:c1:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/9 with class node
			node-vfio-0000:6b:00.1 numa0
			  /dev/vfio/noiommu-120
			  /dev/vfio/vfio`},
		{name: "without a group", recording: "node-vfio-device", rules: anyNode(map[string]string{"SUBSYSTEM": "vfio-dev", "PCI_ID": "8086:4941"}), want: `
			node-vfio-dev-0000:6b:00.2 numa0
			  /dev/vfio/devices/vfio3
			  /dev/iommu`},
		{name: "without a group and without iommufd", recording: "node-vfio-device", rules: anyNode(map[string]string{"SUBSYSTEM": "vfio-dev"}), edits: []string{"N: iommu", "N: other"}, want: `
			node-vfio-dev-0000:6b:00.2 numa0
			  held back: not complete: /dev/iommu is missing`},
		// Two pods could otherwise get the same hardware.
		{name: "with an offered group", recording: "node-vfio-device", edits: vfioGroup, rules: anyNode(map[string]string{"PCI_ID": "8086:4941"}), want: `
			node-vfio-dev-0000:6b:00.2 numa0
			  held back: not for containers: test/node offers the same hardware as /dev/vfio/121
			  /dev/vfio/devices/vfio3
			  /dev/iommu
			node-vfio-0000:6b:00.2 numa0
			  /dev/vfio/121
			  /dev/vfio/vfio`},
		{name: "with a group that is not offered", recording: "node-vfio-device", edits: vfioGroup, rules: anyNode(map[string]string{"SUBSYSTEM": "vfio-dev"}), want: `
			node-vfio-dev-0000:6b:00.2 numa0
			  /dev/vfio/devices/vfio3
			  /dev/iommu`},
	})
}

// vfioGroup changes the recording node-vfio-device, so that the kernel also provides the device's VFIO group.
var vfioGroup = []string{
	"L: driver=", "L: iommu_group=../../../kernel/iommu_groups/121\nL: driver=",
	"P: /devices/virtual/misc/iommu", "P: /devices/virtual/vfio/121\nN: vfio/121\nE: SUBSYSTEM=vfio\nE: MAJOR=511\nE: MINOR=0\n\n" +
		"P: /devices/virtual/misc/vfio\nN: vfio/vfio\nE: SUBSYSTEM=misc\nE: MAJOR=10\nE: MINOR=196\n\nP: /devices/virtual/misc/iommu",
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

// A resource that does not configure scrub offers no node that gives access to a disk. It still offers other devices. The
// disk is not erased.
func TestDiskWithoutAScrub(t *testing.T) {
	const byNode = `node that reaches a disk and does not define what happens to a pod's data: match the disk itself, ` +
		`or add [resource.reset] with scrub = "none"; with "none" the next pod can read the data`
	for _, c := range []struct {
		recording, node, want string
	}{
		{"node-disk", "/dev/sda", `disk and does not define what happens to a pod's data: add [resource.reset] with ` +
			`scrub = "discard", "zero" or "none"; with "none" the disk is offered again only if the pod left it blank`},
		{"node-disk", "/dev/sda1", byNode},
		{"node-disk", "/dev/sg0", byNode},
		{"node-serial", "/dev/ttyUSB0", ""},
	} {
		h, devices := loadMachine(t, c.recording)
		i := slices.IndexFunc(devices, func(u udev.Device) bool { return u.DevNode == c.node })
		if i < 0 {
			t.Fatalf("the recording %s has no %s", c.recording, c.node)
		}
		rule := device.Rule{Resource: "test/node", Class: &device.Generic, Match: map[string]string{"DEVNAME": c.node}, Scrub: device.ScrubUnset, AllowInUse: true}
		s := device.Inspect(h, []device.Rule{rule}, &devices[i])[0]
		if want := c.want; want != "" && (s.Offer == nil || s.Offer.Error() != "not for containers: test/node takes a "+want) || want == "" && s.Offer != nil {
			t.Errorf("%s: %v", c.node, s.Offer)
		}
		rule.Scrub = ""
		if s := device.Inspect(h, []device.Rule{rule}, &devices[i])[0]; s.Offer != nil {
			t.Errorf("%s with a scrub: %v", c.node, s.Offer)
		}
	}
}

// A rule of class node can select its devices by ID.
func TestNodeByID(t *testing.T) {
	h, devices := loadMachine(t, "node-serial")
	const id = "node-FTDI_FT232R_USB_UART_A50285BI-if00"
	rules := anyNode(map[string]string{device.IDProperty: id})
	var taken []string
	for _, u := range devices {
		for _, s := range device.Inspect(h, rules, &u) {
			if s.Resource != "" {
				taken = append(taken, s.Device.ID)
			}
		}
	}
	if want := []string{id}; !slices.Equal(taken, want) {
		t.Errorf("%q, want %q", taken, want)
	}
}

// addScrub adds a scrub to rules.
func addScrub(rules []device.Rule) []device.Rule {
	for i := range rules {
		rules[i].Scrub = "zero"
	}
	return rules
}

// setAllowInUse sets allow_in_use in rules.
func setAllowInUse(rules []device.Rule) []device.Rule {
	for i := range rules {
		rules[i].AllowInUse = true
	}
	return rules
}
