// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
)

const knownMethods = "must be nvme-controller, dfl-port, vfio, pci or pci:METHOD"

// resetter returns the function that implements the requested method, or nil if the method is unknown.
func (t *task) resetter() func(context.Context) (string, error) {
	switch t.Method {
	case "nvme-controller":
		return t.resetControllers
	case "dfl-port":
		return t.resetPort
	case "pci", "vfio":
		return func(ctx context.Context) (string, error) { return t.resetFunctions(ctx, "") }
	}
	if choice := strings.TrimPrefix(t.Method, "pci:"); choice != "" && choice != t.Method {
		return func(ctx context.Context) (string, error) { return t.resetFunctions(ctx, choice) }
	}
	return nil
}

// holdReset exclusively opens the given disks, which are those that a reset affects. holdReset also checks again that the
// requested disk is still the same one. If the request does not list one of the other disks, the error is [Refused].
func (t *task) holdReset(hit []string) (held []*diskFile, err error) {
	for _, d := range hit {
		if d != t.SysPath && !slices.Contains(t.Together, d) {
			return nil, errorf(Refused, "%s would also be affected, and the request does not list this disk as a disk without a pod", path.Base(d))
		}
	}
	slices.Sort(hit)
	hit = slices.Compact(hit)
	for _, d := range hit {
		f, err := t.hold(d, unix.O_RDONLY)
		if err != nil {
			releaseAll(held)
			return nil, err
		}
		held = append(held, f)
	}
	for _, f := range held {
		err = errors.Join(err, f.checkNotShared())
		if f.sysPath == t.SysPath {
			err = errors.Join(err, f.checkSameDisk(t.seq))
		}
	}
	if err = errors.Join(err, t.checkIdentity()); err != nil {
		releaseAll(held)
		return nil, err
	}
	return held, nil
}

// resetControllers resets a namespace's controllers, one after the other. The kernel delays or repeats all I/O to these
// controllers, so no data is lost. A reset of an emulated controller takes 50 ms. The kernel waits for each controller for up to
// twice the time in CAP.TO, which is at most 127.5 s. For controllers with the quirk NVME_QUIRK_DELAY_BEFORE_CHK_RDY, the kernel
// waits 2.3 s longer (nvme_reset_work). This wait cannot be interrupted.
func (t *task) resetControllers(context.Context) (string, error) {
	controllers, err := t.localNVMe(t.SysPath)
	if err != nil {
		return "", err
	}
	disks, err := t.namespacesOf(controllers)
	if err != nil {
		return "", err
	}
	held, err := t.holdReset(append(disks, t.SysPath))
	if err != nil {
		return "", err
	}
	defer releaseAll(held)
	var names []string
	for _, c := range controllers {
		if err := t.resetController(c); err != nil {
			return "", err
		}
		names = append(names, path.Base(c))
	}
	return fmt.Sprintf("reset NVMe controller %s with %d namespaces", strings.Join(names, ", "), len(held)), nil
}

// resetController resets one NVMe controller through the controller's own node.
func (t *task) resetController(sysPath string) error {
	fd, err := t.openDevice(sysPath, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer t.close(fd)
	if err := t.checkIdentity(); err != nil { // another controller may have taken over the name and number
		return err
	}
	name := path.Base(sysPath)
	t.step.set("the reset of %s", name)
	switch _, err := t.ioctl(fd, nvmeIoctlReset, nil); {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENETRESET): // nvme_reset_ctrl_sync
		return errorf(Failed, "reset %s: the device did not come back; read the kernel log, then power the device off and on", name)
	case errors.Is(err, unix.ENOTTY):
		return errorf(Unsupported, "reset %s: the device does not support this reset", name)
	case errors.Is(err, unix.EBUSY):
		return errorf(Busy, "reset %s: the device is already being reset, or its driver has disabled it", name)
	default:
		return commandError("reset "+name, err)
	}
}

// dflPortReset is DFL_FPGA_PORT_RESET (include/uapi/linux/fpga-dfl.h). The ioctl has no argument, so the value passed to it must
// be 0.
const dflPortReset = 0xb640

// resetPort resets the accelerator behind an FPGA port. The reset takes less than a millisecond. If a reset takes longer, the
// driver reports a timeout (RST_POLL_TIMEOUT). A reset changes neither the card's memory nor the bitstream. An exclusive open
// proves that no other process has the port open (dfl_feature_dev_use_begin). When the last process closes the port, the driver
// resets the accelerator again.
func (t *task) resetPort(context.Context) (string, error) {
	name := path.Base(t.SysPath)
	if t.Link(t.SysPath, "driver") != "dfl-port" {
		return "", errorf(Refused, "%s is not a DFL port", name)
	}
	fd, err := t.openDevice(t.SysPath, unix.O_RDWR|unix.O_EXCL)
	if err != nil {
		return "", err
	}
	defer t.close(fd)
	if err := t.checkIdentity(); err != nil {
		return "", err
	}
	t.step.set("the reset of %s", name)
	if _, err := t.ioctl(fd, dflPortReset, nil); err != nil {
		return "", commandError("reset "+name, err)
	}
	return "reset port " + name, nil
}

// awaitReturn waits until a device that was reset or erased is present again. awaitReturn checks that it is still the same device
// and that it works. If no attribute shows the device's state, the function assumes that the device works. The function ignores a
// disk's diskseq, because the diskseq may have changed.
func (t *task) awaitReturn(ctx context.Context) error {
	name := path.Base(t.SysPath)
	t.step.set("waiting for %s to come back", name)
	for {
		err := t.checkWorking()
		if err == nil {
			return nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return errorf(resultOf(err), "%s has not come back: %w", name, err)
		}
	}
}

// checkWorking returns nil if the device is present and works. Otherwise, checkWorking returns the reason.
func (t *task) checkWorking() error {
	if err := t.find(anyAppearance); err != nil {
		return err
	}
	if !t.isDisk(t.SysPath) {
		f := device.FunctionIn(t.SysPath)
		if f == "" {
			return nil
		}
		// A PCI function without a driver, or with a VFIO driver, may be suspended again right after its reset (reset_store in
		// drivers/pci/pci-sysfs.c, vfio_pci_core_register_device). Reading the configuration space first waits for the suspend to
		// complete. If the function cannot answer while it is suspended, the read then wakes it (pci_config_pm_runtime_get).
		if err := (&device.Host{Tree: t.Tree}).Answers(f, true); err != nil {
			return errorf(Gone, "%w", err)
		}
		return nil
	}
	if size, err := t.Attr(t.SysPath, "size"); err == nil && size == "0" {
		return errorf(Gone, "%s has no size", path.Base(t.SysPath))
	}
	if !t.IsNVMe(t.SysPath) {
		return nil
	}
	controllers, err := t.controllersOf(t.SysPath)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if state, err := t.Attr(c, "state"); err != nil || state != "live" {
			return errorf(Failed, "controller %s is %q", path.Base(c), state)
		}
	}
	return nil
}
