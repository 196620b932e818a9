// SPDX-License-Identifier: Apache-2.0

package reset

// Devices in the hands of user space through VFIO (Documentation/driver-api/vfio.rst, include/uapi/linux/vfio.h).

import (
	"context"
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const vfioGroupClass = "/sys/devices/virtual/vfio/"

// resetVFIO resets a PCI function that a VFIO driver has, or all of a group, by the attribute reset, which does the same as
// VFIO_DEVICE_RESET (vfio_pci_ioctl_reset). A group can be opened once only, so that no other process has it then.
func (t *task) resetVFIO(context.Context) (string, error) {
	group, functions, err := t.vfioGroup(t.SysPath)
	if err != nil {
		return "", err
	}
	fd, err := t.openGroup(group)
	if err != nil {
		return "", err
	}
	defer t.close(fd)
	if err := t.identified(); err != nil {
		return "", err
	}
	var names []string
	for _, f := range functions {
		if _, err := f.reset(""); err != nil {
			return "", err
		}
		names = append(names, f.name())
	}
	return "vfio reset of " + strings.Join(names, ", "), nil
}

// vfioGroup returns the number of a group, and those of its functions that are to be reset.
func (h *host) vfioGroup(sysPath string) (group string, functions []function, err error) {
	if h.Link(sysPath, "subsystem") != "vfio" {
		f := h.functionAt(h.Above(sysPath, "pci"))
		if !f.vfio() {
			return "", nil, errorf(Refused, "%s is not bound to a VFIO driver", sysPath)
		}
		return h.Link(f.path, "iommu_group"), []function{f}, nil
	}
	group = path.Base(sysPath)
	all := "/sys/kernel/iommu_groups/" + group + "/devices"
	for _, name := range h.Names(all) {
		if f := h.functionAt(h.Resolve(all + "/" + name)); f.vfio() {
			functions = append(functions, f)
		}
	}
	if len(functions) == 0 {
		return "", nil, errorf(Refused, "in VFIO group %s there is no PCI function with a VFIO driver", group)
	}
	return group, functions, nil
}

// openGroup has the group for us alone.
func (h *host) openGroup(group string) (fd int, err error) {
	if !h.Present(vfioGroupClass + group) {
		return -1, errorf(Unsupported, "VFIO group %q has no node: is this without an IOMMU, or with IOMMUFD only?", group)
	}
	fd, err = h.opened(vfioGroupClass+group, unix.O_RDWR)
	if errors.Is(err, Busy) {
		return -1, errorf(Busy, "VFIO group %s is open: a virtual machine or a pod has it", group)
	}
	return fd, err
}
