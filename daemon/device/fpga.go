// SPDX-License-Identifier: Apache-2.0

package device

// FPGAs: the ports of DFL cards (Intel, Altera, Silicom) and the user functions of XRT cards (Xilinx, AMD).
//
// Follows: Documentation/fpga/dfl.rst; Documentation/ABI/testing/sysfs-platform-dfl-port; drivers/fpga/dfl-afu-main.c and
// dfl-afu-error.c; for XRT src/runtime_src/core/pcie/driver/linux/xocl/userpf of Xilinx/XRT.
//
// Identity: the PCI address of the card and, on it, the number of the port: no card says a serial number in sysfs to
// everybody, and the accelerator in it (afu_id, xclbinuuid) changes with every programming. The number in dfl-port.N is
// the order of discovery.
//
// Health: DFL: no error is latched in the port (until somebody writes it back, or the port is reset), and the accelerator
// is not stopped for its power. XRT: ready, not offline, not in a bad state. For both what pci_health.go says. No event
// tells of it: it is read every minute.
//
// Nodes: /dev/dfl-port.N; the render node of an XRT card. Never /dev/dfl-fme.N and /dev/xclmgmtN, through which the card
// is programmed and taken apart: the drivers ask for no capability there.
//
// Needs: sysfs. No ioctl, no capability, no node is opened.

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// FPGA is the class of accelerators in FPGAs: one device a DFL port or XRT user function.
var FPGA = Class{
	Name: "fpga",
	Doc:  "FPGA accelerators: ports of DFL cards and XRT user functions",
	Match: []udev.Match{
		// Its subsystem is the bus, and its driver is not there from the beginning.
		{Subsystem: "platform", Properties: map[string]string{"DEVNAME": "/dev/dfl-port.*"}},
		{Subsystem: "pci", Properties: map[string]string{"DRIVER": "xocl"}},
	},
	Every:    slowCheck,
	DevNodes: []string{"/dev/dfl-port.[0-9]*", "/dev/dri/renderD[0-9]*"},
	Identify: fpgaIdentify,
	Health:   fpgaHealth,
	Allocate: fpgaAllocate,
}

func fpgaIdentify(h *Host, u udev.Device) ([]Device, error) {
	d := Device{Model: u.Properties["ID_MODEL_FROM_DATABASE"], NUMANode: h.NUMANode(u.SysPath)}
	address := h.pciAddress(u.SysPath)
	if address == "" {
		return nil, errors.New("it is below no PCI function, by which it could be recognised")
	}
	if u.Subsystem == "pci" {
		d.ID = MakeID("fpga", address)
		return []Device{d}, nil
	}
	// Until the driver is bound its attributes are missing, and open(2) gives ENXIO.
	if driver := h.Link(u.SysPath, "driver"); driver != "dfl-port" {
		return nil, incompletef("driver dfl-port is not bound: load the module dfl_afu")
	}
	port, err := h.Attr(u.SysPath, "id")
	if err != nil {
		return nil, incompletef("the number of its port is not known: %w", err)
	}
	d.ID = MakeID("fpga", address, "port"+port)
	if accelerator, err := h.Attr(u.SysPath, "afu_id"); err == nil {
		d.Model = "DFL port, accelerator " + accelerator
	}
	return []Device{d}, nil
}

func fpgaHealth(h *Host, d Device) error {
	if d.Udev.Subsystem == "pci" {
		return xrtHealth(h, d.SysPath)
	}
	return dflHealth(h, d.SysPath)
}

// powerStopped is the power state in which the port lets nothing through to the accelerator any more (AP6). AP1 and AP2
// only slow it down, and pass.
const powerStopped = 6

// dflHealth reads what the port has latched. Errors stay until somebody writes them back (dfl-afu-error.c); a port of
// which the bitstream has no error feature has none of these attributes.
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

// xrtHealth reads the attributes of the user function's driver; versions of XRT differ in which there are.
func xrtHealth(h *Host, sysPath string) error {
	for _, good := range []string{"ready=1", "dev_offline=0", "device_bad_state=0"} {
		name, want, _ := strings.Cut(good, "=")
		value, err := h.Attr(sysPath, name)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if value != want {
			return fmt.Errorf("driver xocl: %s is %q", name, value)
		}
	}
	return nil
}

func fpgaAllocate(h *Host, d Device) (Allocation, error) {
	var a Allocation
	if d.Udev.Subsystem != "pci" {
		err := a.add(h, d.Udev.DevNode, linksIn(d.Udev, "by-id", "by-path")...)
		return a, err
	}
	link := "/dev/dri/by-path/pci-" + h.pciAddress(d.SysPath) + "-render"
	for _, name := range drmNames(h, d.SysPath, "renderD") {
		if err := a.add(h, "/dev/dri/"+name, link); err != nil {
			return Allocation{}, err
		}
	}
	if len(a.Nodes) == 0 {
		return Allocation{}, incompletef("driver xocl has made no render node")
	}
	return a, nil
}
