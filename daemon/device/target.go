// SPDX-License-Identifier: Apache-2.0

package device

import (
	"slices"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// identity returns the given attributes that exist and are not empty. They form the identity of a target.
func (h *Host) identity(sysPath string, names ...string) []Attribute {
	var all []Attribute
	for _, name := range names {
		if value, err := h.Attr(sysPath, name); err == nil && value != "" {
			all = append(all, Attribute{name, value})
		}
	}
	return all
}

// nvmeTarget returns the target of a namespace. The target includes the serial number of the controller, from which the ID
// of a namespace without an identifier is derived. diskseq increases each time a disk appears
// (Documentation/ABI/testing/sysfs-block). A reset of the controller stops all its namespaces for a moment. The reset is
// therefore automatic only if the controller has a single namespace.
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

// portTarget returns the target of an FPGA port. The reset keeps the port's driver bound, and affects nothing else.
func portTarget(h *Host, d Device) *Target {
	if h.Link(d.SysPath, "driver") != "dfl-port" {
		return nil
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Sole: true, Auto: "dfl-port", Identity: h.identity(d.SysPath, "dev", "id")}
}

// functionTarget returns the target of a PCI function. The function is identified by its PCI IDs and by the ID that the
// hardware reports, if any.
func functionTarget(h *Host, d Device) *Target {
	return &Target{
		Class: d.Class.Name, SysPath: d.SysPath,
		Identity: h.identity(d.SysPath, "unique_id", "node_guid", "vendor", "device", "subsystem_vendor", "subsystem_device"),
	}
}

// nodeTarget returns the target of a disk without a class of its own, or of a VFIO group or device. It returns nil for
// partitions.
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
	if sysfs.Removable(&h.Tree, d.SysPath) { // the identity of the drive stays the same when its medium is replaced
		known = []string{"diskseq", "dev"}
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true, Identity: h.identity(d.SysPath, known...)}
}
