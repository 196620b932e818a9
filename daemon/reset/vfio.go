// SPDX-License-Identifier: Apache-2.0

package reset

// Devices in the hands of user space through VFIO (Documentation/driver-api/vfio.rst; include/uapi/linux/vfio.h).

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	vfioSetIOMMU          = 0x3b66 // VFIO_SET_IOMMU
	vfioGroupGetStatus    = 0x3b67 // VFIO_GROUP_GET_STATUS
	vfioGroupSetContainer = 0x3b68 // VFIO_GROUP_SET_CONTAINER
	vfioGroupGetDeviceFD  = 0x3b6a // VFIO_GROUP_GET_DEVICE_FD
	vfioDeviceGetInfo     = 0x3b6b // VFIO_DEVICE_GET_INFO
	vfioDeviceReset       = 0x3b6f // VFIO_DEVICE_RESET

	vfioType1v2      = 3      // VFIO_TYPE1v2_IOMMU
	vfioGroupViable  = 1 << 0 // VFIO_GROUP_FLAGS_VIABLE
	vfioFlagsReset   = 1 << 0 // VFIO_DEVICE_FLAGS_RESET
	vfioStatusSize   = 8      // struct vfio_group_status: argsz, flags
	vfioInfoSize     = 16     // struct vfio_device_info as it was at first: argsz, flags, num_regions, num_irqs
	vfioGroupClass   = "/sys/devices/virtual/vfio/"
	vfioContainerDev = "/sys/devices/virtual/misc/vfio"
)

// resetVFIO resets a PCI function that a VFIO driver has, or all of a group. A group can be opened once only, so that
// to have it is to know that nobody else does. The driver resets the function when it is opened and closed, too.
func (h *host) resetVFIO(_ context.Context, r Request) (string, error) {
	group, functions, err := h.vfioGroup(r.SysPath)
	if err != nil {
		return "", err
	}
	fd, err := h.openGroup(group)
	if err != nil {
		return "", err
	}
	defer h.close(fd)
	if err := h.identified(r); err != nil {
		return "", err
	}
	container, err := h.opened(vfioContainerDev, unix.O_RDWR)
	if err != nil {
		return "", err
	}
	defer h.close(container)
	if err := h.attach(fd, container); err != nil {
		return "", errorf(Failed, "put VFIO group %s into a container: %w", group, err)
	}
	for _, f := range functions {
		if err := h.resetInGroup(fd, f); err != nil {
			return "", err
		}
	}
	return "vfio reset of " + strings.Join(functions, ", "), nil
}

// vfioGroup returns the number of a group, and the addresses of those of its functions that are to be reset.
func (h *host) vfioGroup(sysPath string) (group string, functions []string, err error) {
	if h.Link(sysPath, "subsystem") != "vfio" {
		f := h.Above(sysPath, "pci")
		if !h.vfioBound(f) {
			return "", nil, errorf(Refused, "%s is not bound to a VFIO driver", sysPath)
		}
		return h.Link(f, "iommu_group"), []string{path.Base(f)}, nil
	}
	group = path.Base(sysPath)
	all := "/sys/kernel/iommu_groups/" + group + "/devices"
	for _, name := range h.Names(all) {
		if h.vfioBound(h.Resolve(all + "/" + name)) {
			functions = append(functions, name)
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

// attach is what has to be before a device can be had: the group in a container, and that with an IOMMU.
func (h *host) attach(group, container int) error {
	viable, err := h.groupViable(group)
	if err != nil {
		return err
	}
	if !viable {
		return errors.New("not all devices of the group have a VFIO driver or none")
	}
	if err := h.setContainer(group, container); err != nil {
		return err
	}
	return h.setIOMMU(container)
}

func (h *host) groupViable(group int) (bool, error) {
	status := make([]byte, vfioStatusSize)
	binary.NativeEndian.PutUint32(status, vfioStatusSize)
	_, err := h.ioctlOn(group, vfioGroupGetStatus, status)
	return binary.NativeEndian.Uint32(status[4:])&vfioGroupViable != 0, err
}

func (h *host) setContainer(group, container int) error {
	_, err := h.ioctlOn(group, vfioGroupSetContainer, binary.NativeEndian.AppendUint32(nil, uint32(container)))
	return err
}

func (h *host) setIOMMU(container int) error {
	_, err := h.ioctl(container, vfioSetIOMMU, vfioType1v2)
	return err
}

// resetInGroup resets one function.
func (h *host) resetInGroup(group int, address string) error {
	h.step.is("the reset of %s", address)
	fd, err := h.deviceOf(group, address)
	if err != nil {
		return commandError("open "+address+" in its VFIO group", err)
	}
	defer h.close(fd)
	can, err := h.canReset(fd)
	if err != nil {
		return errorf(Failed, "ask VFIO about %s: %w", address, err)
	}
	if !can {
		return errorf(Unsupported, "%s cannot be reset alone", address)
	}
	if err := h.deviceReset(fd); err != nil {
		return errorf(Failed, "reset %s: %w", address, err)
	}
	return nil
}

func (h *host) deviceOf(group int, address string) (fd int, err error) {
	return h.ioctlOn(group, vfioGroupGetDeviceFD, append([]byte(address), 0))
}

func (h *host) canReset(fd int) (bool, error) {
	info := make([]byte, vfioInfoSize)
	binary.NativeEndian.PutUint32(info, vfioInfoSize)
	_, err := h.ioctlOn(fd, vfioDeviceGetInfo, info)
	return binary.NativeEndian.Uint32(info[4:])&vfioFlagsReset != 0, err
}

func (h *host) deviceReset(fd int) error {
	_, err := h.ioctl(fd, vfioDeviceReset, 0)
	if err != nil {
		return fmt.Errorf("VFIO_DEVICE_RESET: %w", err)
	}
	return nil
}
