// SPDX-License-Identifier: Apache-2.0

package reset

// This file resets a PCI function by means of its attributes "reset" and "reset_method" (Documentation/ABI/testing/sysfs-bus-pci,
// drivers/pci/pci.c).

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

	"github.com/metalplug/metalplug/daemon/device"
)

// baseBridge is PCI_BASE_CLASS_BRIDGE (include/linux/pci_ids.h). In a bridge's attribute "class", the highest byte has this
// value.
const baseBridge = 0x06

// resetSafeDrivers returns the drivers that continue to work after their device has been reset, because they save its state
// beforehand. In Linux 6.12, the pci_error_handlers of these drivers have reset_prepare and reset_done. Among the drivers for
// GPUs and accelerators, only those for Gaudi and for Intel and Qualcomm accelerators have these functions. No RDMA driver has
// them. The list omits the drivers of network adapters and storage host adapters, because a reset interrupts their connections to
// other hosts. The list also omits cxl_pci, because its reset_done only warns that the system may have lost memory.
func resetSafeDrivers() []string { return []string{"nvme", "intel_vpu", "habanalabs", "qaic"} }

// function is a PCI function.
type function struct {
	*host
	path string // path in sysfs
}

func (h *host) functionAt(sysPath string) function { return function{h, sysPath} }

// name returns the function's address, such as "0000:02:00.0".
func (f function) name() string { return path.Base(f.path) }

func (f function) hasVFIODriver() bool {
	return f.path != "" && strings.Contains(strings.ReplaceAll(f.Link(f.path, "driver"), "-", "_"), "vfio_pci")
}

// checkResettable returns the reason why the function must not be reset, or nil. checkResettable examines only sysfs attributes.
func (f function) checkResettable() error {
	driver := f.Link(f.path, "driver")
	if driver != "" && !f.hasVFIODriver() && !slices.Contains(resetSafeDrivers(), driver) {
		return errorf(Refused, "%s is bound to %s, which would not survive a reset; unbind that driver first", f.name(), driver)
	}
	if driver != "" && f.Present(f.path+"/infiniband") {
		return errorf(Refused, "%s has an RDMA device, whose driver would not survive a reset; unbind that driver first", f.name())
	}
	if n := f.Uint(f.path, "sriov_numvfs"); n != 0 {
		return errorf(Refused, "%s has %d virtual functions, which would also be reset; remove them first", f.name(), n)
	}
	if f.Uint(f.path, "class")>>16 == baseBridge {
		return errorf(Refused, "%s is a bridge, and all devices behind it would also be reset", f.name())
	}
	return nil
}

// methods returns the content of the attribute "reset_method". The parameter choice is the name of a method, or empty. If the
// attribute does not list the chosen method, the error is [Unsupported].
func (f function) methods(choice string) (listed string, err error) {
	if !f.Present(f.path + "/reset") {
		return "", errorf(Unsupported, "%s has no reset method", f.name())
	}
	listed, err = f.Attr(f.path, "reset_method")
	if err != nil && choice != "" {
		return "", errorf(Unsupported, "choosing the reset method of %s requires Linux 5.15: %w", f.name(), err)
	}
	if choice != "" && !slices.Contains(strings.Fields(listed), choice) {
		return "", errorf(Unsupported, "%s is reset by %q, not by %q", f.name(), listed, choice)
	}
	return listed, nil
}

// reset resets the function. If choice is not empty, reset writes this method to the attribute "reset_method" first, and restores
// the attribute afterwards.
func (f function) reset(choice, listed string) (done string, err error) {
	if choice != "" {
		attribute := f.Path(f.path + "/reset_method")
		if err := f.write(attribute, choice); err != nil {
			return "", errorf(Failed, "choose the reset method of %s: %w", f.name(), err)
		}
		defer func() {
			if restore := f.write(attribute, listed); restore != nil {
				err = errors.Join(err, errorf(Failed, "restore %q as the reset methods of %s: %w", listed, f.name(), restore))
			}
		}()
	}
	f.step.set("the reset of %s", f.name())
	switch err := f.write(f.Path(f.path+"/reset"), "1"); {
	case err == nil:
		return "pci reset of " + f.name() + " by " + cmp.Or(choice, strings.ReplaceAll(listed, " ", " or "), "the kernel's choice"), nil
	case errors.Is(err, unix.ENOTTY):
		return "", errorf(Unsupported, "reset %s: no method works: %w", f.name(), err)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EAGAIN):
		return "", errorf(Busy, "reset %s: %w", f.name(), err)
	default:
		return "", commandError("reset "+f.name(), err)
	}
}

// affectedFunctions returns the functions that the given reset methods can affect. The methods flr, af_flr and pm affect only
// the function itself. Any other method affects all functions behind the same bridge. A root bus cannot be reset. For a
// function on a root bus, such a method therefore affects only the functions in the same slot.
func (f function) affectedFunctions(methods string) (hit []function) {
	affectsOthers := func(method string) bool { return method != "flr" && method != "af_flr" && method != "pm" }
	if methods != "" && !slices.ContainsFunc(strings.Fields(methods), affectsOthers) {
		return []function{f}
	}
	bus := path.Dir(f.path)
	slot, _, _ := strings.Cut(f.name(), ".")
	for _, name := range f.Names(bus) {
		other := f.functionAt(bus + "/" + name)
		if f.Link(other.path, "subsystem") == "pci" && (f.Link(bus, "subsystem") == "pci" || strings.HasPrefix(name, slot+".")) {
			hit = append(hit, other)
		}
	}
	return hit
}

// checkNetwork returns an error if the function has a network interface, which a reset would stop, or if checkNetwork cannot list
// the function's directories. checkNetwork only checks whether a directory named "net" exists. Every sysfs mount shows this
// directory, but the directory contains only the interfaces in the mount's network namespace (net_ns_type_operations,
// class_dir_create_and_add in drivers/base/core.c). The directory may be below a child device, such as a virtio device or a
// device on the auxiliary bus.
func (f function) checkNetwork(reset function) error {
	return filepath.WalkDir(f.Path(f.path), func(_ string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return errorf(Busy, "cannot determine whether %s has a network interface: %w", f.name(), err)
		case !entry.IsDir():
			return nil
		case entry.Name() == "net":
			return errorf(Refused, "%s has a network interface, perhaps in another network namespace, which a reset of %s would stop; unbind its driver first",
				f.name(), reset.name())
		}
		return nil
	})
}

// disks returns the sysfs paths of the disks that are accessed through the function.
func (f function) disks() (disks []string, err error) {
	tree := f.Recording(&err)
	for _, name := range tree.Names("/sys/block") {
		d := f.Resolve("/sys/block/" + name)
		if strings.HasPrefix(d, f.path+"/") && f.Uint(d, "hidden") == 0 {
			disks = append(disks, d)
		}
	}
	var controllers []string
	for _, name := range tree.Names(f.path + "/nvme") {
		controllers = append(controllers, f.path+"/nvme/"+name)
	}
	if err != nil {
		return nil, errorf(Busy, "cannot determine which disks are behind %s: %w", f.name(), err)
	}
	heads, err := f.namespacesOf(controllers)
	return slices.Compact(slices.Sorted(slices.Values(append(disks, heads...)))), err
}

// resetFunctions resets the PCI functions of the device. The parameter choice is the method to use. If choice is empty, the
// kernel uses the first working method in the attribute "reset_method". The method "flr" takes 100 ms and affects only the
// function itself. The method "pm" takes 10 ms. The method "bus" takes the link down for 1 s (pci_reset_secondary_bus,
// pci_bridge_wait_for_secondary_bus). The method "bus" works only if there is no other device on the bus.
func (t *task) resetFunctions(ctx context.Context, choice string) (string, error) {
	functions, err := t.functions()
	if err != nil {
		return "", err
	}
	var done []string
	for _, f := range functions {
		text, err := t.resetFunction(ctx, f, choice)
		if err != nil {
			return "", err
		}
		done = append(done, text)
	}
	return strings.Join(done, ", "), nil
}

func (t *task) resetFunction(ctx context.Context, f function, choice string) (string, error) {
	if f.path != t.SysPath {
		unlock, err := t.lockDevice(ctx, f.path)
		if err != nil {
			return "", err
		}
		defer unlock()
	}
	listed, err := f.methods(choice)
	if err != nil {
		return "", err
	}
	letGo, err := t.freeFunction(f, cmp.Or(choice, listed))
	if err != nil {
		return "", err
	}
	defer letGo()
	if err := f.checkResettable(); err != nil {
		return "", err
	}
	if err := t.checkIdentity(); err != nil {
		return "", err
	}
	return f.reset(choice, listed)
}

// functions returns the PCI functions of the device. Only a VFIO group can have more than one.
func (t *task) functions() ([]function, error) {
	at := t.SysPath
	switch {
	case t.Link(at, "subsystem") == "vfio":
		return t.inGroup(path.Base(at))
	case t.isDisk(at) && t.IsNVMe(at):
		controllers, err := t.controllersOf(at)
		if err != nil {
			return nil, err
		}
		if len(controllers) > 1 {
			return nil, errorf(Refused, "%s is reached by more than one PCI function", at)
		}
		at = controllers[0]
	}
	f := t.functionAt(device.FunctionIn(at))
	switch {
	case f.path == "":
		return nil, errorf(Refused, "%s is not on a PCI function", t.SysPath)
	case t.Method == "vfio" && !f.hasVFIODriver():
		return nil, errorf(Refused, "%s is not bound to a VFIO driver", t.SysPath)
	}
	return []function{f}, nil
}

// freeFunction checks that a reset with one of the given methods would not disturb anything that uses the function. Until the
// caller calls letGo, no other process can open the function's VFIO group or mount a disk behind the function. If the function
// has a driver, this driver must continue to work after a reset. The function must not have a network interface, and its disks
// must not be in use. If the function has a VFIO driver, no process may have the group open. freeFunction does not look for
// processes that have one of the function's device nodes open. Finding them is the job of metalplug-holders.
func (t *task) freeFunction(f function, methods string) (letGo func(), err error) {
	if err := f.checkResettable(); err != nil {
		return nil, err
	}
	scope := f.affectedFunctions(methods)
	if t.Method == "vfio" { // like VFIO_DEVICE_RESET, this refuses to reset other functions (pci_reset_function)
		scope = []function{f}
	}
	if len(scope) == 0 { // the bus cannot be listed
		return nil, errorf(Busy, "cannot determine which functions a reset of %s affects", f.name())
	}
	var hit []string
	for _, other := range scope {
		if err := other.checkNetwork(f); err != nil {
			return nil, err
		}
		disks, err := other.disks()
		if err != nil {
			return nil, err
		}
		hit = append(hit, disks...)
	}
	if f.hasVFIODriver() {
		fd, err := t.openGroup(t.Link(f.path, "iommu_group"))
		if err != nil {
			return nil, err
		}
		return func() { t.close(fd) }, nil
	}
	held, err := t.holdReset(hit)
	if err != nil {
		return nil, err
	}
	return func() { releaseAll(held) }, nil
}
