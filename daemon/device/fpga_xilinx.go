// SPDX-License-Identifier: Apache-2.0

package device

// This file handles FPGA cards from Xilinx and AMD that use XRT or the xdma driver. xdma drives the DMA engine in users'
// own designs.
//
// Follows: src/runtime_src/core/pcie/driver/linux/xocl of Xilinx/XRT (userpf/xocl_sysfs.c, mgmtpf/mgmt-sysfs.c);
// XDMA/linux-kernel/xdma/xdma_cdev.c of Xilinx/dma_ip_drivers.
//
// A card with XRT has two PCI functions, but is one device. Its user function, which has the xocl driver, represents the
// card. A virtual machine may see only the user function.
//
// Health: with XRT, both functions are ready and not offline, the state of the user function is not bad, and the management
// function answers. The xdma driver does not report health.
//
// Nodes: with XRT, the render node. /dev/xclmgmtN, through which the card is programmed, is never added, but class node can
// offer it. With xdma, the nodes intended for users of the design, which are user, bypass, the DMA channels h2c and c2h,
// and events. Three kinds of nodes are never added: control, which can make a DMA engine read and write any memory, xvc,
// which gives access to the FPGA's debug interface, and the descriptors of the engines (bypass_h2c, bypass_c2h). The number
// in xdmaN depends on the order of discovery. No link stays correct when the numbers change.

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// xrtHealth checks the attributes of both functions of a card. The set of attributes depends on the version of XRT.
func xrtHealth(h *Host, user string) error {
	if err := xrtState(h, user, "xocl"); err != nil {
		return err
	}
	management := xrtManagement(h, user)
	if management == "" {
		return nil
	}
	if err := h.pciAnswers(management, false); err != nil {
		return fmt.Errorf("its management function %s: %w", path.Base(management), err)
	}
	return xrtState(h, management, "xclmgmt")
}

// xrtState checks the attributes that an XRT driver exposes for a function. Numbers are decimal, or hexadecimal with the
// prefix 0x. For example, xocl's attribute ready is "0x1".
func xrtState(h *Host, function, driver string) error {
	for _, good := range []struct {
		name string
		want int64
	}{{"ready", 1}, {"dev_offline", 0}, {"device_bad_state", 0}} {
		value, err := h.Int(function, good.name)
		switch {
		case errors.Is(err, ErrGone):
		case err != nil:
			return err
		case value != good.want:
			return fmt.Errorf("driver %s: %s is %d", driver, good.name, value)
		}
	}
	return nil
}

// xrtManagement returns the management function of the card to which a user function belongs. It returns "" if this machine
// has no such function.
func xrtManagement(h *Host, user string) string {
	slot, _, _ := strings.Cut(path.Base(user), ".")
	for _, name := range h.Names(path.Dir(user)) {
		function := path.Dir(user) + "/" + name
		if strings.HasPrefix(name, slot+".") && h.Link(function, "driver") == "xclmgmt" {
			return function
		}
	}
	return ""
}

// xdmaNodes matches the names of the devices intended for users of the FPGA design.
const xdmaNodes = "xdma[0-9]*_user|xdma[0-9]*_bypass|xdma[0-9]*_h2c_[0-9]*|xdma[0-9]*_c2h_[0-9]*|xdma[0-9]*_events_[0-9]*"

// xdmaEngines matches the names of the devices that the driver creates for each DMA engine. Until one of these devices
// exists, the driver is still initialising the card.
const xdmaEngines = "xdma[0-9]*_h2c_[0-9]*|xdma[0-9]*_c2h_[0-9]*"

// addXDMA adds the nodes of a function with driver xdma.
func (r *recipe) addXDMA(function string) {
	engines := 0
	for _, name := range r.Names(function + "/xdma") {
		if udev.Glob("xdma[0-9]*_bypass_*", name) || !udev.Glob(xdmaNodes, name) {
			continue
		}
		if udev.Glob(xdmaEngines, name) {
			engines++
		}
		r.add("/dev/" + name)
	}
	if engines == 0 {
		r.fail(incompletef("driver xdma has created no DMA channel"))
	}
}
