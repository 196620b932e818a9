// SPDX-License-Identifier: Apache-2.0

package device

// FPGA cards of Xilinx and AMD, with XRT, or with the driver xdma of the DMA engine that the users' own designs have.
//
// Follows: src/runtime_src/core/pcie/driver/linux/xocl of Xilinx/XRT (userpf/xocl_sysfs.c, mgmtpf/mgmt-sysfs.c);
// XDMA/linux-kernel/xdma/xdma_cdev.c of Xilinx/dma_ip_drivers.
//
// A card with XRT has two PCI functions and is one device. The user function, of driver xocl, stands for it. In a virtual
// machine it may be alone.
//
// Health: of XRT, both functions are ready and not offline, the user function is not in a bad state, and the management
// function answers. Driver xdma says nothing of its own.
//
// Nodes: of XRT the render node. Never /dev/xclmgmtN, by which the card is programmed, and which class node can offer. With
// xdma it is the nodes by which the design is used, which are user, bypass, the DMA channels h2c and c2h, and events. Never
// control, by which a DMA engine can be made to read and write any memory, xvc, the way to the debugger in the FPGA, and the
// descriptors of the engines (bypass_h2c, bypass_c2h). The number in xdmaN is the order of discovery. No link outlives it.

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// xrtHealth reads the attributes of both functions of a card. Versions of XRT have different ones.
func xrtHealth(h *Host, user string) error {
	if err := xrtState(h, user, "xocl"); err != nil {
		return err
	}
	management := xrtManagement(h, user)
	if management == "" {
		return nil
	}
	if err := h.pciAnswers(management); err != nil {
		return fmt.Errorf("its management function %s: %w", path.Base(management), err)
	}
	return xrtState(h, management, "xclmgmt")
}

// xrtState reads what a driver of XRT says of a function. Numbers are decimal or with 0x, such as "0x1" in xocl's ready.
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

// xrtManagement returns the management function of the card that a user function is on. It returns "" if that is not on this
// machine.
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

// xdmaNodes are the names of the devices for users of the design in the FPGA.
const xdmaNodes = "xdma[0-9]*_user|xdma[0-9]*_bypass|xdma[0-9]*_h2c_[0-9]*|xdma[0-9]*_c2h_[0-9]*|xdma[0-9]*_events_[0-9]*"

// xdmaEngines are the names of the devices that the driver makes for each DMA engine. Before it has made one, it is not done.
const xdmaEngines = "xdma[0-9]*_h2c_[0-9]*|xdma[0-9]*_c2h_[0-9]*"

// addXDMA adds the nodes of a function of driver xdma.
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
		r.fail(incompletef("driver xdma has made no DMA channel"))
	}
}
