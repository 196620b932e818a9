// SPDX-License-Identifier: Apache-2.0

package reset

// The attributes reset and reset_method of a PCI function (Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/pci.c).

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// baseBridge is PCI_BASE_CLASS_BRIDGE (include/linux/pci_ids.h), the attribute class without its last two bytes.
const baseBridge = 0x06

// survivors are the drivers that save what they need before a reset and go on after it. They have reset_prepare and reset_done
// in their pci_error_handlers, in Linux 6.12. No GPU driver but those of Gaudi and of Intel's and Qualcomm's accelerators is
// one, and no RDMA driver. Left out are drivers of network and storage adapters, which other hosts see go, and cxl_pci, which
// has reset_done only to warn that memory of the system may be lost.
func survivors() []string { return []string{"nvme", "intel_vpu", "habanalabs", "qaic"} }

// resetFunction resets a PCI function by one method of those that its reset_method lists, or the first that works. "flr" takes
// 100 ms and hits the function alone. "pm" takes 10 ms. "bus" takes the link down for 1 s (pci_reset_secondary_bus,
// pci_bridge_wait_for_secondary_bus), and is possible only where nothing else is on the bus.
func (h *host) resetFunction(ctx context.Context, r Request, choice string) (string, error) {
	function, err := h.functionOf(r.SysPath)
	if err != nil {
		return "", err
	}
	if function != r.SysPath {
		unlock, err := h.only(ctx, function)
		if err != nil {
			return "", err
		}
		defer unlock()
	}
	letGo, err := h.freeFunction(r, function, choice)
	if err != nil {
		return "", err
	}
	defer letGo()
	if err := h.identified(r); err != nil {
		return "", err
	}
	return h.resetBy(function, choice)
}

// resetBy makes the reset if the function may be reset. A method that is chosen is so for this one time.
func (h *host) resetBy(function, choice string) (done string, err error) {
	address := path.Base(function)
	if err := h.mayReset(function); err != nil {
		return "", err
	}
	listed, err := h.resetMethods(function, choice)
	if err != nil {
		return "", err
	}
	if choice != "" {
		if err := h.write(h.Path(function+"/reset_method"), choice); err != nil {
			return "", errorf(Failed, "choose how to reset %s: %w", address, err)
		}
		defer func() {
			if restore := h.write(h.Path(function+"/reset_method"), listed); restore != nil {
				err = errors.Join(err, errorf(Failed, "restore %q as the ways to reset %s: %w", listed, address, restore))
			}
		}()
	}
	h.step.is("the reset of %s", address)
	if err := h.write(h.Path(function+"/reset"), "1"); err != nil {
		return "", resetError(address, err)
	}
	return "pci reset of " + address + " by " + cmp.Or(choice, strings.ReplaceAll(listed, " ", " or "), "the kernel's choice"), nil
}

func resetError(address string, err error) error {
	switch {
	case errors.Is(err, unix.ENOTTY):
		return errorf(Unsupported, "reset %s: no method works: %w", address, err)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EAGAIN):
		return errorf(Busy, "reset %s: %w", address, err)
	}
	return commandError("reset "+address, err)
}

// functionOf returns the one PCI function of a device.
func (h *host) functionOf(sysPath string) (string, error) {
	if h.Link(sysPath, "subsystem") != "block" || !h.IsNVMe(sysPath) {
		if f := h.Above(sysPath, "pci"); f != "" {
			return f, nil
		}
		return "", errorf(Refused, "%s is on no PCI function", sysPath)
	}
	controllers, err := h.controllersOf(sysPath)
	if err != nil {
		return "", err
	}
	f := h.Above(controllers[0], "pci")
	if len(controllers) > 1 || f == "" {
		return "", errorf(Refused, "%s is not reached by just one PCI function", sysPath)
	}
	return f, nil
}

// resetMethods returns the list in the attribute reset_method. The choice, if there is one, has to be among it.
func (h *host) resetMethods(function, choice string) (listed string, err error) {
	address := path.Base(function)
	if !h.Present(function + "/reset") {
		return "", errorf(Unsupported, "%s has no way to reset it", address)
	}
	listed, err = h.Attr(function, "reset_method")
	if err != nil && choice != "" {
		return "", errorf(Unsupported, "how to reset %s cannot be chosen before Linux 5.15: %w", address, err)
	}
	if choice != "" && !slices.Contains(strings.Fields(listed), choice) {
		return "", errorf(Unsupported, "%s is reset by %q, not by %q", address, listed, choice)
	}
	return listed, nil
}

// freeFunction makes sure that a reset disturbs no user of the function, and that no use begins until letGo is called. Its
// driver survives, or there is none. It has no network interface. Its disks are not used. Where user space has it, no process
// has opened it. metalplug-holders finds processes that have just opened a node of it.
func (h *host) freeFunction(r Request, function, choice string) (letGo func(), err error) {
	if err := h.mayReset(function); err != nil {
		return nil, err
	}
	listed, err := h.resetMethods(function, choice)
	if err != nil {
		return nil, err
	}
	var hit []string
	for _, f := range h.scope(function, cmp.Or(choice, listed)) {
		if h.hasNetwork(f) {
			return nil, errorf(Refused, "%s has a network interface, in whichever namespace, which a reset of %s would stop; unbind its driver first",
				path.Base(f), path.Base(function))
		}
		disks, err := h.disksOf(f)
		if err != nil {
			return nil, err
		}
		hit = append(hit, disks...)
	}
	if h.vfioBound(function) {
		fd, err := h.openGroup(h.Link(function, "iommu_group"))
		if err != nil {
			return nil, err
		}
		return func() { h.close(fd) }, nil
	}
	held, err := h.holdReset(r, hit)
	if err != nil {
		return nil, err
	}
	return func() { h.releaseAll(held) }, nil
}

// mayReset returns why a function must not be reset, by what sysfs tells of it.
func (h *host) mayReset(function string) error {
	driver, address := h.Link(function, "driver"), path.Base(function)
	if driver != "" && !h.vfioBound(function) && !slices.Contains(survivors(), driver) {
		return errorf(Refused, "%s is bound to %s, which does not survive a reset: unbind it first", address, driver)
	}
	if driver != "" && h.Present(function+"/infiniband") {
		return errorf(Refused, "%s has an RDMA device, and no driver of those survives a reset: unbind it first", address)
	}
	if n := h.Uint(function, "sriov_numvfs"); n != 0 {
		return errorf(Refused, "%s has %d virtual functions, which would be reset too: remove them first", address, n)
	}
	if h.Uint(function, "class")>>16 == baseBridge {
		return errorf(Refused, "%s is a bridge: all that is behind it would be reset too", address)
	}
	return nil
}

// scope returns the functions that a reset by any of some methods can hit. flr, af_flr and pm hit the function alone. The
// others, and unknown ones, hit all that is behind the same bridge. On a root bus, which cannot be reset, that is the slot.
func (h *host) scope(function, methods string) []string {
	alone := methods != ""
	for m := range strings.FieldsSeq(methods) {
		alone = alone && slices.Contains([]string{"flr", "af_flr", "pm"}, m)
	}
	if alone {
		return []string{function}
	}
	bus := path.Dir(function)
	slot, _, _ := strings.Cut(path.Base(function), ".")
	var hit []string
	for _, name := range h.Names(bus) {
		f := bus + "/" + name
		if h.Link(f, "subsystem") == "pci" && (h.Link(bus, "subsystem") == "pci" || strings.HasPrefix(name, slot+".")) {
			hit = append(hit, f)
		}
	}
	return hit
}

// hasNetwork reports whether a function has a network interface. The directory net is there in each sysfs. Its entries are
// only in that of its network namespace (net_ns_type_operations, class_dir_create_and_add in drivers/base/core.c). It may be
// that of a device below, such as one of virtio or of the auxiliary bus.
func (h *host) hasNetwork(function string) (found bool) {
	root := h.Path(function)
	filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || !entry.IsDir():
			return nil
		case entry.Name() == "net":
			found = true
			return fs.SkipAll
		case name != root && h.Link(function+strings.TrimPrefix(name, root), "subsystem") == "pci":
			return fs.SkipDir // another function
		}
		return nil
	})
	return found
}

// disksOf returns the disks that a function carries.
func (h *host) disksOf(function string) (disks []string, err error) {
	for _, name := range h.Names("/sys/block") {
		d := h.Resolve("/sys/block/" + name)
		if strings.HasPrefix(d, function+"/") && h.Uint(d, "hidden") == 0 {
			disks = append(disks, d)
		}
	}
	var controllers []string
	for _, name := range h.Names(function + "/nvme") {
		controllers = append(controllers, function+"/nvme/"+name)
	}
	heads, err := h.namespacesOf(controllers)
	return slices.Compact(slices.Sorted(slices.Values(append(disks, heads...)))), err
}

// Devices in the hands of user space through VFIO (Documentation/driver-api/vfio.rst, include/uapi/linux/vfio.h).

const vfioGroupClass = "/sys/devices/virtual/vfio/"

// resetVFIO resets a PCI function that a VFIO driver has, or all of a group, by the attribute reset, which does the same as
// VFIO_DEVICE_RESET (vfio_pci_ioctl_reset). A group can be opened once only, so that no other process has it then.
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
	for _, f := range functions {
		if _, err := h.resetBy(f, ""); err != nil {
			return "", err
		}
	}
	return "vfio reset of " + namesOf(functions), nil
}

// vfioGroup returns the number of a group, and those of its functions that are to be reset.
func (h *host) vfioGroup(sysPath string) (group string, functions []string, err error) {
	if h.Link(sysPath, "subsystem") != "vfio" {
		f := h.Above(sysPath, "pci")
		if !h.vfioBound(f) {
			return "", nil, errorf(Refused, "%s is not bound to a VFIO driver", sysPath)
		}
		return h.Link(f, "iommu_group"), []string{f}, nil
	}
	group = path.Base(sysPath)
	all := "/sys/kernel/iommu_groups/" + group + "/devices"
	for _, name := range h.Names(all) {
		if f := h.Resolve(all + "/" + name); h.vfioBound(f) {
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
