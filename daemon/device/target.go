// SPDX-License-Identifier: Apache-2.0

package device

import (
	"maps"
	"slices"
	"strings"

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
// its own has one made of that. diskseq grows each time that a disk appears (Documentation/ABI/testing/sysfs-block).
func nvmeTarget(h *Host, d Device) *Target {
	return &Target{
		Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true,
		Identity: h.identity(d.SysPath, "wwid", "diskseq", "device/serial"),
	}
}

// nvmeAuto returns the reset of the controller if the namespace is its only one, because it stops all of them for a moment.
func nvmeAuto(h *Host, d Device) string {
	controllers := h.NVMeControllers(d.SysPath)
	if len(controllers) != 1 {
		return ""
	}
	if disks, without := h.NVMeNamespaces(controllers[0]); len(disks) != 1 || len(without) > 0 {
		return ""
	}
	return "nvme-controller"
}

// nvmeHits returns the other namespaces that a method hits, which are those of its controllers or of the whole subsystem.
func nvmeHits(h *Host, d Device, method string) []string {
	controllers := h.NVMeControllers(d.SysPath)
	switch {
	case method == "sanitize":
		for _, c := range controllers {
			controllers = append(controllers, h.NVMeSiblings(c)...)
		}
	case method == "nvme-controller", method == "pci", strings.HasPrefix(method, "pci:"):
	default: // of one namespace alone
		return nil
	}
	others := make(map[string]bool)
	for _, controller := range controllers {
		disks, _ := h.NVMeNamespaces(controller)
		for _, namespace := range disks {
			if namespace != d.SysPath {
				others[namespace] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(others))
}

// portTarget finds a port of an FPGA.
func portTarget(h *Host, d Device) *Target {
	if h.Link(d.SysPath, "driver") != "dfl-port" {
		return nil
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Sole: true, Identity: h.identity(d.SysPath, "dev", "id")}
}

// portAuto returns the reset of the port. The port comes back from it with its driver bound, and nothing else is hit.
func portAuto(h *Host, d Device) string {
	if h.Link(d.SysPath, "driver") != "dfl-port" {
		return ""
	}
	return "dfl-port"
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
		return &Target{Class: d.Class.Name, SysPath: d.SysPath, Sole: true, Identity: h.identity(d.SysPath, "dev")}
	case d.Udev.Subsystem != "block", h.IsPartition(d.SysPath):
		return nil
	}
	known := []string{"diskseq", "wwid", "device/wwid", "device/serial", "dev"}
	if sysfs.Removable(&h.Tree, d.SysPath) { // what identifies the drive outlasts its medium
		known = []string{"diskseq", "dev"}
	}
	return &Target{Class: d.Class.Name, SysPath: d.SysPath, Disk: true, Sole: true, Identity: h.identity(d.SysPath, known...)}
}
