// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// reset brings a device to a known state by the method that is asked for, and returns what it did.
func (h *host) reset(ctx context.Context, r Request) (done string, err error) {
	do := h.resetter(r.Method)
	if do == nil {
		return "", errorf(Refused, "invalid method %q: %s", r.Method, knownMethods)
	}
	if done, err = do(ctx, r); err != nil {
		return "", err
	}
	return done, h.back(ctx, r)
}

const knownMethods = "must be nvme-controller, nvme-subsystem, dfl-port, vfio, pci or pci:METHOD"

// resetter returns the function of a method; nil: there is none of that name.
func (h *host) resetter(method string) func(context.Context, Request) (string, error) {
	name, choice, chosen := strings.Cut(method, ":")
	switch {
	case name == "pci" && (!chosen || choice != ""):
		return func(ctx context.Context, r Request) (string, error) { return h.resetFunction(ctx, r, choice) }
	case chosen:
		return nil
	}
	return map[string]func(context.Context, Request) (string, error){
		"nvme-controller": h.resetControllers, "nvme-subsystem": h.resetSubsystem, "dfl-port": h.resetPort, "vfio": h.resetVFIO,
	}[name]
}

// holdReset holds the disks that a reset hits, and checks again that the request's own is the same.
func (h *host) holdReset(r Request, hit []string) (held []*claim, err error) {
	if err := r.vouched(hit); err != nil {
		return nil, err
	}
	held, err = h.holdAll(hit)
	if err != nil {
		return nil, err
	}
	for _, c := range held {
		err = errors.Join(err, h.shared(c))
		if c.sysPath == r.SysPath {
			err = errors.Join(err, r.sameDisk(c))
		}
	}
	if err = errors.Join(err, h.identified(r)); err != nil {
		h.releaseAll(held)
		return nil, err
	}
	return held, nil
}

// holdBehind holds the disks behind controllers that a reset hits.
func (h *host) holdBehind(r Request, controllers []string) (held []*claim, err error) {
	hit, err := h.namespacesOf(controllers)
	if err != nil {
		return nil, err
	}
	return h.holdReset(r, hit)
}

// resetControllers resets the controllers that reach a namespace, one after the other. Everything behind them waits, and
// loses nothing: I/O is done again. 50 ms in an emulator; the kernel waits up to twice CAP.TO (at most 127.5 s) and a
// quirk's 2.3 s for a controller (nvme_reset_work), which nothing can interrupt.
func (h *host) resetControllers(_ context.Context, r Request) (string, error) {
	controllers, err := h.localNVMe(r.SysPath)
	if err != nil {
		return "", err
	}
	held, err := h.holdBehind(r, controllers)
	if err != nil {
		return "", err
	}
	defer h.releaseAll(held)
	var done []string
	for _, c := range controllers {
		if err := h.atController(r, c, nvmeIoctlReset); err != nil {
			return "", err
		}
		done = append(done, path.Base(c))
	}
	return fmt.Sprintf("reset NVMe controller %s with %d namespaces", strings.Join(done, ", "), len(held)), nil
}

// resetSubsystem resets all controllers of the NVM subsystem at once, where they can (CAP.NSSRS). On PCI Express the
// link mostly goes down with it and the disks come anew (nvme_pci_subsystem_reset), so that they are let go of before
// they are waited for: else they would get other names.
func (h *host) resetSubsystem(_ context.Context, r Request) (string, error) {
	controllers, err := h.localNVMe(r.SysPath)
	if err != nil {
		return "", err
	}
	all := h.NVMeSiblings(controllers[0])
	held, err := h.holdBehind(r, all)
	if err != nil {
		return "", err
	}
	defer h.releaseAll(held)
	if err := h.ownSubsystem(r, held, all); err != nil {
		return "", err
	}
	if err := h.atController(r, controllers[0], nvmeIoctlSubsysReset); err != nil {
		return "", err
	}
	return fmt.Sprintf("reset the NVM subsystem with %d controllers and %d namespaces", len(all), len(held)), nil
}

// ownSubsystem checks that no controller of the NVM subsystem is in other hands.
func (h *host) ownSubsystem(r Request, held []*claim, controllers []string) error {
	for _, c := range held {
		if c.sysPath != r.SysPath {
			continue
		}
		id, err := h.controllerOf(c)
		if err != nil {
			return err
		}
		return h.allOurs(c.fd, id, controllers)
	}
	return errorf(Failed, "%s is not among what a reset of its subsystem hits", path.Base(r.SysPath))
}

// atController makes an ioctl that resets on the node of a controller.
func (h *host) atController(r Request, sysPath string, request uintptr) error {
	fd, err := h.opened(sysPath, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer h.close(fd)
	if err := h.identified(r); err != nil { // another may have its name and number by now
		return err
	}
	name := path.Base(sysPath)
	h.step.is("the reset of %s", name)
	switch _, err := h.ioctl(fd, request, 0); {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENETRESET): // nvme_reset_ctrl_sync
		return errorf(Failed, "reset %s: it did not come back: look at the kernel's log, then power it off and on", name)
	case errors.Is(err, unix.ENOTTY):
		return errorf(Unsupported, "reset %s: it has no such reset", name)
	case errors.Is(err, unix.EBUSY):
		return errorf(Busy, "reset %s: it is being reset already, or has been given up", name)
	default:
		return commandError("reset "+name, err)
	}
}

// dflPortReset is DFL_FPGA_PORT_RESET (include/uapi/linux/fpga-dfl.h), which takes no argument: it must be 0.
const dflPortReset = 0xb640

// resetPort resets the accelerator behind a port: within a millisecond, or it is a time-out (RST_POLL_TIMEOUT). That
// touches neither the memory beside it nor the bitstream. An exclusive open is the kernel's own word that nobody has the
// port (dfl_feature_dev_use_begin); the last close resets it once more.
func (h *host) resetPort(_ context.Context, r Request) (string, error) {
	name := path.Base(r.SysPath)
	if h.Link(r.SysPath, "driver") != "dfl-port" {
		return "", errorf(Refused, "%s is no DFL port", name)
	}
	fd, err := h.opened(r.SysPath, unix.O_RDWR|unix.O_EXCL)
	if err != nil {
		return "", err
	}
	defer h.close(fd)
	if err := h.identified(r); err != nil {
		return "", err
	}
	h.step.is("the reset of %s", name)
	if _, err := h.ioctl(fd, dflPortReset, 0); err != nil {
		return "", commandError("reset "+name, err)
	}
	return "reset port " + name, nil
}
