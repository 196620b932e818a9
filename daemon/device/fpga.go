// SPDX-License-Identifier: Apache-2.0

package device

// This file handles FPGAs. A device is either a port on a DFL card (Intel, Altera, Silicom) or a whole card from Xilinx or AMD
// (fpga_xilinx.go). A DFL card uses the kernel's drivers or the older OPAE drivers. A card from Xilinx or AMD uses XRT or the
// xdma driver.
//
// Follows: Documentation/fpga/dfl.rst; Documentation/ABI/testing/sysfs-platform-dfl-port and sysfs-class-fpga-manager;
// drivers/fpga/dfl-afu-main.c, dfl-afu-error.c and fpga-mgr.c; for OPAE's own drivers, plugins/xfpga/sysfs.c in
// OPAE/opae-sdk.
//
// Identity: the card's PCI address and the port's number on the card. A card's serial number is not used, because only privileged
// users can read this number in sysfs. The ID of the accelerator (afu_id, xclbinuuid) changes each time the card is programmed.
// The number in dfl-port.N depends on the order of discovery.
//
// Health: a DFL port is healthy if it has no latched error, and if it has not stopped the accelerator for drawing too much power.
// A process clears a latched error by writing the error's value back to the attribute. Resetting the port clears the error too.
// In addition, the card's fpga_manager must not report that the last attempt to program the FPGA failed. After a failure, the
// content of the FPGA is unknown until the FPGA is programmed again. The checks in pci.go also apply. The kernel sends no event
// for these changes, so the state is read every minute.
//
// Nodes: a container gets /dev/dfl-port.N, but never /dev/dfl-fme.N. Through dfl-fme, a process could reprogram the whole card
// and release its ports. The driver lets a process without any capability open this node.
//
// Reset: resetting a DFL port takes less than a millisecond. The reset affects only the port, and does not clear the memory
// attached to the accelerator. Cards of other families cannot be reset.
//
// Needs: sysfs. The class needs no ioctl or capability, and does not open device nodes.

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// FPGA is the class of FPGA accelerators. Each DFL port and each Xilinx card is a device.
var FPGA = Class{
	Name: FPGAName,
	Doc:  "FPGA accelerators: ports of DFL cards, and Xilinx cards with XRT or xdma",
	Match: []udev.Match{
		// A port's subsystem is the platform bus. The match does not contain a driver, because the driver may not be bound yet.
		{Subsystem: "platform", Properties: map[string]string{"DEVNAME": "/dev/dfl-port.*|/dev/intel-fpga-port.*"}},
		{Subsystem: "pci", Properties: map[string]string{"DRIVER": "xocl|xdma"}},
	},
	// A Xilinx card has two PCI functions, and the user function represents the card. Wakes therefore selects the management
	// function's events, so that they also lead to an inspection of the card.
	Wakes: []udev.Match{{Subsystem: "pci", Properties: map[string]string{"DRIVER": "xclmgmt"}}},
	Every: slowCheck,
	DevNodes: []string{
		"/dev/dfl-port.[0-9]*", "/dev/intel-fpga-port.[0-9]*", "/dev/dri/renderD[0-9]*",
		"/dev/xdma[0-9]*_user", "/dev/xdma[0-9]*_bypass", "/dev/xdma[0-9]*_h2c_[0-9]*", "/dev/xdma[0-9]*_c2h_[0-9]*",
		"/dev/xdma[0-9]*_events_[0-9]*",
	},
	Identify: fpgaIdentify,
	Health:   fpgaHealth,
	Allocate: fpgaAllocate,
	Target:   portTarget,
}

func fpgaIdentify(h *Host, u udev.Device) ([]Device, error) {
	d := Device{Model: u.Properties.Value("ID_MODEL_FROM_DATABASE")}
	address := pciAddress(u.SysPath)
	if address == "" {
		return nil, errors.New("the port has no PCI parent that identifies the port")
	}
	if u.Subsystem == "pci" {
		d.ID = MakeID("fpga", address)
		return []Device{d}, nil
	}
	// Until the driver is bound, a port has no attributes, and opening its node fails with ENXIO.
	if driver := h.Link(u.SysPath, "driver"); driver != "dfl-port" && driver != "intel-fpga-port" {
		missing, _, _ := strings.Cut(path.Base(u.DevNode), ".") // the node's name without its number
		return nil, incompletef("driver %s is not bound: load the dfl_afu module, or intel-fpga-afu of OPAE", missing)
	}
	port, err := h.Attr(u.SysPath, "id")
	if err != nil {
		return nil, incompletef("the port number is unknown: %w", err)
	}
	d.ID = MakeID("fpga", address, "port"+port)
	if accelerator, err := h.Attr(u.SysPath, "afu_id"); err == nil {
		d.Model = "DFL port, accelerator " + accelerator
	}
	return []Device{d}, nil
}

func fpgaHealth(h *Host, d Device) error {
	var err error
	switch {
	case d.Udev.Subsystem != "pci":
		err = dflHealth(h, d.SysPath)
	case h.Link(d.SysPath, "driver") == "xocl":
		err = xrtHealth(h, d.SysPath)
	}
	return joinErrors(err, programmingError(h, FunctionIn(d.SysPath)))
}

// programmingError returns the error from the last time that an FPGA was programmed, such as "write init error" (state_show of
// fpga-mgr.c). The error does not show which port of the card was programmed.
func programmingError(h *Host, function string) error {
	const class = "/sys/class/fpga_manager"
	for _, name := range h.Names(class) {
		if function == "" || !strings.HasPrefix(h.Resolve(class+"/"+name), function+"/") {
			continue
		}
		state, err := h.Attr(class+"/"+name, "state")
		if err == nil && (strings.HasSuffix(state, " error") || state == "power off") {
			return fmt.Errorf("the programming of the FPGA ended in %q (%s): program the FPGA again", state, name)
		}
	}
	return nil
}

// powerStopped is the power state AP6, in which the port blocks all traffic to the accelerator. The states AP1 and AP2 slow down
// the accelerator temporarily, but do not stop it.
const powerStopped = 6

// dflHealth reads the latched errors of a port. A latched error remains until a process writes its value back to the attribute
// (dfl-afu-error.c). If a port's bitstream has no error feature, the port lacks the error attributes.
func dflHealth(h *Host, sysPath string) error {
	for _, name := range []string{"errors/errors", "errors/first_error"} {
		text, err := h.Attr(sysPath, name)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if bits, err := strconv.ParseUint(text, 0, 64); err != nil || bits != 0 {
			return fmt.Errorf("port error: %s is %s", name, text)
		}
	}
	if state, err := h.Int(sysPath, "power_state"); err == nil && state == powerStopped {
		return errors.New("the port has stopped the accelerator, which draws too much power (AP6)")
	}
	return nil
}

func fpgaAllocate(r *recipe, d Device) {
	switch {
	case d.Udev.Subsystem != "pci":
		r.add(d.Udev.DevNode, linksIn(*d.Udev, "by-id", "by-path")...)
	case r.Link(d.SysPath, "driver") == "xdma":
		r.addXDMA(d.SysPath)
	default:
		names := drmNames(r.Host, d.SysPath, "renderD")
		if len(names) == 0 {
			r.fail(incompletef("driver xocl has created no render node"))
		}
		r.addDRM(d.SysPath, names...)
	}
}
