// SPDX-License-Identifier: Apache-2.0

package device

import (
	"slices"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// identity returns those of the given attributes that exist and are not empty. These attributes form the identity of a target.
func (h *Host) identity(sysPath string, names ...string) []Attribute {
	var all []Attribute
	for _, name := range names {
		if value, err := h.Attr(sysPath, name); err == nil && value != "" {
			all = append(all, Attribute{name, value})
		}
	}
	return all
}

// nvmeTarget returns the target for a namespace. The identity includes the serial number of the controller, because the ID of a
// namespace that reports no identifier is derived from this number. The identity also includes the diskseq, which increases each
// time a disk appears (Documentation/ABI/testing/sysfs-block). A reset of the controller briefly stops all its namespaces. The
// reset is therefore automatic only if the controller has a single namespace.
func nvmeTarget(h *Host, d Device) *Target {
	t := &Target{Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true, Identity: h.identity(d.SysPath, "wwid", "diskseq", "device/serial")}
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

// portTarget returns the target for an FPGA port. A reset keeps the port's driver bound, and affects no other port.
func portTarget(h *Host, d Device) *Target {
	if h.Link(d.SysPath, "driver") != "dfl-port" {
		return nil
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Sole: true, Auto: "dfl-port", Identity: h.identity(d.SysPath, "dev", "id")}
}

// functionTarget returns the target for a PCI function. The identity consists of the PCI IDs of the function, and of the ID that
// the hardware reports, if any.
func functionTarget(h *Host, d Device) *Target {
	return &Target{
		Class: d.Class.Name, SysPath: d.SysPath,
		Identity: h.identity(d.SysPath, "unique_id", "node_guid", "vendor", "device", "subsystem_vendor", "subsystem_device"),
	}
}

// nodeTarget returns the target for a device of class node if it is a disk, or a VFIO group or device. nodeTarget returns nil for
// any other device, such as a partition.
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
	if sysfs.Removable(&h.Tree, d.SysPath) { // the other attributes identify the drive, whose medium can be replaced
		known = []string{"diskseq", "dev"}
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true, Identity: h.identity(d.SysPath, known...)}
}
