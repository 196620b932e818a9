// SPDX-License-Identifier: Apache-2.0

package device

// This file handles devices whose kernel driver gives a process complete control of the hardware. These devices are VFIO groups
// and devices, and DSA and IAA work queues.
//
// Follows Documentation/driver-api/vfio.rst, drivers/vfio/vfio_main.c, drivers/iommu/iommu.c (iommu_group_claim_dma_owner),
// drivers/dma/idxd/cdev.c and Documentation/ABI/stable/sysfs-driver-dma-idxd.

import (
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// vfioFunctions returns the sorted sysfs paths of the PCI functions or other devices in a VFIO group, regardless of their
// drivers. The result omits bridges, and is nil if u is not a VFIO group or device.
func vfioFunctions(h *Host, u udev.Device) []string {
	switch u.Subsystem {
	case "vfio":
		return slices.DeleteFunc(vfioMembers(h, u), func(member string) bool {
			return strings.HasPrefix(h.Properties(member)["PCI_CLASS"], "604") // PCI_CLASS_BRIDGE_PCI in linux/pci_ids.h
		})
	case "vfio-dev":
		return []string{path.Dir(path.Dir(u.SysPath))} // DEVICE/vfio-dev/vfio0 (vfio_init_device)
	}
	return nil
}

// vfioMembers returns the sysfs paths of all devices in a VFIO group. A VFIO group contains the devices in the IOMMU group with
// the same number.
func vfioMembers(h *Host, u udev.Device) []string {
	directory := "/sys/kernel/iommu_groups/" + strings.TrimPrefix(path.Base(u.DevNode), noIOMMU) + "/devices/"
	var members []string
	for _, name := range h.Names(directory) {
		if member := h.Resolve(directory + name); member != "" {
			members = append(members, member)
		}
	}
	return members
}

// isVFIO reports whether a driver belongs to VFIO. The name of such a driver contains vfio, as in vfio-pci, mlx5_vfio_pci,
// vfio-platform and vfio_mdev.
func isVFIO(driver string) bool { return strings.Contains(driver, "vfio") }

// vfioViable returns an error if u is a VFIO group that no process can open. A process can open a group only if each of its
// devices has a VFIO driver, a driver that manages its own DMA (driver_managed_dma), or no driver.
func vfioViable(h *Host, u udev.Device) error {
	if u.Subsystem != "vfio" {
		return nil
	}
	members := vfioMembers(h, u)
	if len(members) == 0 {
		return incompletef("IOMMU group %s is empty", path.Base(u.DevNode))
	}
	var reasons []error
	if strings.HasPrefix(path.Base(u.DevNode), noIOMMU) {
		reasons = append(reasons, byNamef("the device has no IOMMU: a process that opens the device can reach all memory of the host"))
	}
	for _, member := range members {
		driver := h.Link(member, "driver")
		if driver != "" && driver != "pcieport" && driver != "pci-stub" && !isVFIO(driver) {
			reasons = append(reasons, incompletef("%s, in the same IOMMU group, is bound to %s: bind it to vfio-pci too",
				path.Base(member), driver))
		}
	}
	return joinErrors(reasons...)
}

// vfioDuplicate returns an error if u is a VFIO device and a rule takes the device's VFIO group. The kernel can provide both
// nodes for the same hardware, and two pods could then get this hardware.
func vfioDuplicate(h *Host, rules []Rule, u udev.Device) error {
	if u.Subsystem != "vfio-dev" {
		return nil
	}
	group, _ := udev.ReadKernel(h.Sys, "/sys/devices/virtual/vfio/"+h.Link(vfioFunctions(h, u)[0], "iommu_group"))
	if rule, _, _ := nodeRule(h, rules, group); rule != nil { // without a group, there is no node and no rule
		return excludedf("%s offers the same hardware as %s", rule.Resource, group.DevNode)
	}
	return nil
}

// noIOMMU is the prefix of the name of a group that has no IOMMU (vfio_noiommu, which taints the kernel).
const noIOMMU = "noiommu-"

// vfioCompanions maps a subsystem to the node that a VFIO group or device needs in addition to its own node. /dev/vfio/vfio is
// the VFIO container, to which a process adds its groups.
var vfioCompanions = map[string]string{"vfio": "/dev/vfio/vfio", "vfio-dev": "/dev/iommu"}

// nodeAuto returns the automatic reset method for a VFIO group, or "". A process that opens the group controls all of its
// functions. The group can be reset only if each of its devices is a PCI function that can be reset separately. Only such a
// function has the attribute "reset" (pci_dev_reset_attr_is_visible).
func nodeAuto(h *Host, d Device) string {
	bound := 0
	for _, function := range vfioFunctions(h, *d.Udev) {
		if !isVFIO(h.Link(function, "driver")) {
			continue // the kernel uses this device, or it is unused
		}
		if h.Link(function, "subsystem") != "pci" || !h.Present(function+"/reset") {
			return ""
		}
		// The reset method opens the group, and cannot open a device without a group.
		if group := h.Link(function, "iommu_group"); d.Udev.Subsystem != "vfio" && (group == "" || !h.Present("/sys/devices/virtual/vfio/"+group)) {
			return ""
		}
		bound++
	}
	if bound == 0 {
		return ""
	}
	return "vfio"
}

// queueOf returns the sysfs path of the work queue that a DSA or IAA node belongs to. For example, queueOf returns .../dsa0/wq0.1
// for .../dsa0/wq0.1/dsa!wq0.1 (idxd_wq_add_cdev). queueOf returns "" for other nodes.
func queueOf(u udev.Device) string {
	if u.Subsystem != "dsa" || u.DevNode == "" {
		return ""
	}
	return path.Dir(u.SysPath)
}

// queueReady returns an error if u is a DSA or IAA work queue that a process cannot use. queueReady returns nil if u is not a
// work queue.
func queueReady(h *Host, u udev.Device) error {
	queue := queueOf(u)
	if queue == "" {
		return nil
	}
	for _, want := range []struct{ name, value string }{{"state", "enabled"}, {"type", "user"}} {
		value, err := h.Attr(queue, want.name)
		if err != nil {
			return incompletef("work queue %s: %w", path.Base(queue), err)
		}
		if value != want.value {
			return incompletef("the %s of work queue %s is %s, not %s", want.name, path.Base(queue), value, want.value)
		}
	}
	return nil
}
