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

// reset brings a device to a known state by the method that is asked for, and returns what it did.
func (h *host) reset(ctx context.Context, r Request) (done string, err error) {
	if done, err = h.resetter(r.Method)(ctx, r); err != nil {
		return "", err
	}
	return done, h.back(ctx, r)
}

const knownMethods = "must be nvme-controller, dfl-port, vfio, pci or pci:METHOD"

// resetter returns the function of a method, or nil if no method has that name.
func (h *host) resetter(method string) func(context.Context, Request) (string, error) {
	name, choice, chosen := strings.Cut(method, ":")
	switch {
	case name == "pci" && (!chosen || choice != ""):
		return func(ctx context.Context, r Request) (string, error) { return h.resetFunction(ctx, r, choice) }
	case chosen:
		return nil
	}
	return map[string]func(context.Context, Request) (string, error){
		"nvme-controller": h.resetControllers, "dfl-port": h.resetPort, "vfio": h.resetVFIO,
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
		err = errors.Join(err, c.shared())
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

// resetControllers resets the controllers that reach a namespace, one after the other. Everything behind them waits and loses
// nothing, as I/O is done again. It takes 50 ms in an emulator. The kernel waits up to twice CAP.TO (at most 127.5 s) and a
// quirk's 2.3 s for a controller (nvme_reset_work), which nothing can interrupt.
func (h *host) resetControllers(_ context.Context, r Request) (string, error) {
	controllers, err := h.localNVMe(r.SysPath)
	if err != nil {
		return "", err
	}
	disks, err := h.namespacesOf(controllers)
	if err != nil {
		return "", err
	}
	if !slices.Contains(disks, r.SysPath) {
		return "", errorf(Failed, "%s is not among what its reset hits", path.Base(r.SysPath))
	}
	held, err := h.holdReset(r, disks)
	if err != nil {
		return "", err
	}
	defer h.releaseAll(held)
	for _, c := range controllers {
		if err := h.resetController(r, c); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("reset NVMe controller %s with %d namespaces", namesOf(controllers), len(held)), nil
}

// namesOf returns the names of devices, for people.
func namesOf(sysPaths []string) string {
	var names []string
	for _, p := range sysPaths {
		names = append(names, path.Base(p))
	}
	return strings.Join(names, ", ")
}

// resetController resets one controller by its own node.
func (h *host) resetController(r Request, sysPath string) error {
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
	switch _, err := h.ioctl(fd, nvmeIoctlReset, nil); {
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

// dflPortReset is DFL_FPGA_PORT_RESET (include/uapi/linux/fpga-dfl.h), which takes no argument and wants 0.
const dflPortReset = 0xb640

// resetPort resets the accelerator behind a port. It takes a millisecond, or is a time-out (RST_POLL_TIMEOUT). It touches
// neither the memory beside it nor the bitstream. By an exclusive open the kernel says that no process has the port
// (dfl_feature_dev_use_begin). The last close resets it once more.
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
	if _, err := h.ioctl(fd, dflPortReset, nil); err != nil {
		return "", commandError("reset "+name, err)
	}
	return "reset port " + name, nil
}

// back waits until a device that was reset or erased is there again, is the same, and works. A device whose attributes do not
// show its state counts as working.
func (h *host) back(ctx context.Context, r Request) error {
	h.step.is("waiting for %s to come back", path.Base(r.SysPath))
	r = r.anyAppearance()
	for {
		err := h.works(r)
		if err == nil {
			return nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return errorf(resultOf(err), "%s has not come back: %w", path.Base(r.SysPath), err)
		}
	}
}

// anyAppearance is the request without the diskseq, as a disk that appears again has another one.
func (r Request) anyAppearance() Request {
	r.Identity = slices.DeleteFunc(slices.Clone(r.Identity), func(a device.Attribute) bool { return path.Base(a.Name) == "diskseq" })
	return r
}

// works returns nil if the device is there and works, or what is the matter.
func (h *host) works(r Request) error {
	if err := h.find(r); err != nil {
		return err
	}
	if h.Link(r.SysPath, "subsystem") != "block" {
		return h.answers(h.Above(r.SysPath, "pci"))
	}
	if size, err := h.Attr(r.SysPath, "size"); err == nil && size == "0" {
		return errorf(Gone, "%s has no size", path.Base(r.SysPath))
	}
	if !h.IsNVMe(r.SysPath) {
		return nil
	}
	controllers, err := h.controllersOf(r.SysPath)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if state, err := h.Attr(c, "state"); err != nil || state != "live" {
			return errorf(Failed, "controller %s is %q", path.Base(c), state)
		}
	}
	return nil
}

// answers returns an error if a PCI function does not answer. Then it reads as ones everywhere (PCI_SET_ERROR_RESPONSE).
func (h *host) answers(function string) error {
	if function == "" {
		return nil
	}
	const vendor = 2 // bytes, at the beginning
	start, err := h.ReadStart(function+"/config", vendor)
	if err != nil {
		return err
	}
	if start == "\xff\xff" {
		return errorf(Gone, "%s does not answer", path.Base(function))
	}
	return nil
}
