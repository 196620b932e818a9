// SPDX-License-Identifier: Apache-2.0

package device

// This file handles FPGA cards from Xilinx and AMD that use XRT or the xdma driver. The xdma driver is for FPGA designs that
// contain Xilinx's DMA engine.
//
// Follows: src/runtime_src/core/pcie/driver/linux/xocl of Xilinx/XRT (userpf/xocl_sysfs.c, mgmtpf/mgmt-sysfs.c);
// XDMA/linux-kernel/xdma/xdma_cdev.c of Xilinx/dma_ip_drivers.
//
// A card with XRT has two PCI functions, but is offered as one device. The user function, which has the xocl driver, represents
// the card. In a virtual machine, the management function may be missing.
//
// Health: with XRT, both functions must be ready and not offline, and neither may report a bad state. In addition, the management
// function must answer when its PCI configuration space is read. The xdma driver does not report a card's health.
//
// Nodes: with XRT, a container gets the render node. A container never gets /dev/xclmgmtN, because a process can program the card
// through this node. However, class node can offer this node. With xdma, a container gets the nodes that are intended for the
// design's users, which are "user", "bypass", "events", and the DMA channels "h2c" and "c2h". Three kinds of nodes are never
// added. Through the node "control", a process could make a DMA engine read and write any memory. The node "xvc" gives access to
// the FPGA's debug interface. The nodes "bypass_h2c" and "bypass_c2h" give access to the engines' descriptors. The number in
// xdmaN depends on the order of discovery, and no link stays correct when the numbers change.

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// xrtHealth checks the attributes of both of a card's functions. The set of attributes depends on the version of XRT.
func xrtHealth(h *Host, user string) error {
	if err := xrtState(h, user, "xocl"); err != nil {
		return err
	}
	management := xrtManagement(h, user)
	if management == "" {
		return nil
	}
	if err := h.pciAnswers(management, false); err != nil {
		return fmt.Errorf("management function %s: %w", path.Base(management), err)
	}
	return xrtState(h, management, "xclmgmt")
}

// xrtState checks the attributes that an XRT driver exposes for a function. The attributes contain decimal numbers, or
// hexadecimal numbers with the prefix 0x. For example, xocl shows "0x1" in the attribute "ready".
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

// xrtManagement returns the management function of the card with the given user function, or "" if there is none.
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

// xdmaEngines matches the names of the devices that the driver creates for each DMA engine. If none of these devices exists, the
// driver is still initialising the card.
const xdmaEngines = "xdma[0-9]*_h2c_[0-9]*|xdma[0-9]*_c2h_[0-9]*"

// addXDMA adds the nodes of a PCI function that is bound to the xdma driver.
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
