// SPDX-License-Identifier: Apache-2.0

package device

import (
	"slices"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// identity reads those of the attributes that are there and not empty, such as those of a target's identity.
func (h *Host) identity(sysPath string, names ...string) []Attribute {
	var all []Attribute
	for _, name := range names {
		if value, err := h.Attr(sysPath, name); err == nil && value != "" {
			all = append(all, Attribute{name, value})
		}
	}
	return all
}

// nvmeTarget finds a namespace. The serial number of its controller is there too, because a namespace without an identity of
// its own has one made of that. diskseq grows each time that a disk appears (Documentation/ABI/testing/sysfs-block). The reset of
// its controller stops all namespaces there for a moment, and suits the only one.
func nvmeTarget(h *Host, d Device) *Target {
	t := &Target{
		Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true,
		Identity: h.identity(d.SysPath, "wwid", "diskseq", "device/serial"),
	}
	controllers, only := h.NVMeControllers(d.SysPath), true
	for _, c := range controllers {
		disks, without := h.NVMeNamespaces(c)
		t.Siblings = append(t.Siblings, slices.DeleteFunc(disks, func(disk string) bool { return disk == d.SysPath })...)
		only = only && len(without) == 0
	}
	slices.Sort(t.Siblings)
	if t.Siblings = slices.Compact(t.Siblings); only && len(controllers) == 1 && len(t.Siblings) == 0 {
		t.Auto = "nvme-controller"
	}
	return t
}

// portTarget finds a port of an FPGA. The port comes back from its reset with its driver bound, and nothing else is hit.
func portTarget(h *Host, d Device) *Target {
	if h.Link(d.SysPath, "driver") != "dfl-port" {
		return nil
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Sole: true, Auto: "dfl-port", Identity: h.identity(d.SysPath, "dev", "id")}
}

// functionTarget finds what stands for a PCI function, by what the vendor or the kernel calls it.
func functionTarget(h *Host, d Device) *Target {
	return &Target{
		Class: d.Class.Name, SysPath: d.SysPath,
		Identity: h.identity(d.SysPath, "unique_id", "node_guid", "vendor", "device", "subsystem_vendor", "subsystem_device"),
	}
}

// nodeTarget finds a disk that no class of its own has, or what a driver of VFIO hands on. Its node is not of a
// partition.
func nodeTarget(h *Host, d Device) *Target {
	switch {
	case d.group != nil:
		return nil
	case d.Udev.Subsystem == "vfio", d.Udev.Subsystem == "vfio-dev":
		return &Target{Class: d.Class.Name, SysPath: d.SysPath, Sole: true, Auto: nodeAuto(h, d), Identity: h.identity(d.SysPath, "dev")}
	case d.Udev.Subsystem != "block", h.IsPartition(d.SysPath):
		return nil
	}
	known := []string{"diskseq", "wwid", "device/wwid", "device/serial", "dev"}
	if sysfs.Removable(&h.Tree, d.SysPath) { // what identifies the drive outlasts its medium
		known = []string{"diskseq", "dev"}
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true, Identity: h.identity(d.SysPath, known...)}
}
