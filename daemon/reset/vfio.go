// SPDX-License-Identifier: Apache-2.0

package reset

// This file handles devices that a user-space driver uses through VFIO (Documentation/driver-api/vfio.rst,
// include/uapi/linux/vfio.h). A write to a function's attribute "reset" does the same as VFIO_DEVICE_RESET
// (vfio_pci_ioctl_reset).

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

const vfioGroupClass = "/sys/devices/virtual/vfio/"

// inGroup returns the PCI functions in a VFIO group that have a VFIO driver.
func (h *host) inGroup(group string) (functions []function, err error) {
	all := "/sys/kernel/iommu_groups/" + path.Base(group) + "/devices/"
	for _, name := range h.Names(all) {
		if f := h.functionAt(h.Resolve(all + name)); f.hasVFIODriver() {
			functions = append(functions, f)
		}
	}
	if len(functions) == 0 {
		return nil, errorf(Refused, "VFIO group %s has no PCI function with a VFIO driver", path.Base(group))
	}
	return functions, nil
}

// openGroup opens a VFIO group. The kernel does not let a group be opened twice at the same time. If openGroup succeeds, no other
// process has the group open.
func (h *host) openGroup(group string) (fd int, err error) {
	if !h.Present(vfioGroupClass + group) {
		return -1, errorf(Unsupported, "VFIO group %q has no node; perhaps there is no IOMMU, or the kernel only supports IOMMUFD", group)
	}
	fd, err = h.openDevice(vfioGroupClass+group, unix.O_RDWR)
	if errors.Is(err, Busy) {
		return -1, errorf(Busy, "VFIO group %s is open: a virtual machine or a pod uses it", group)
	}
	return fd, err
}
