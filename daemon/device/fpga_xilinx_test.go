// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"
)

func TestXRT(t *testing.T) {
	const card = `fpga-0000:18:00.1 "Alveo U250 XDMA Platform" numa0` + "\n"
	const render = "  /dev/dri/renderD129 = /dev/dri/by-path/pci-0000:18:00.1-render"
	const silent = "the PCI configuration space does not answer: the device has fallen off the bus\n"
	const management = "H: config=ee100450\nA: dev_offline=0\\n\nA: numa_node=0\\n\nA: ready=1\\n"
	testSights(t, []sight{
		{name: "XRT", recording: "fpga-xrt", want: card + render},
		{name: "XRT not ready", recording: "fpga-xrt", edits: []string{"ready=0x1", "ready=0x0"}, want: card +
			"  sick: driver xocl: ready is 0\n" + render},
		{name: "XRT offline", recording: "fpga-xrt", edits: []string{"dev_offline=0", "dev_offline=1"}, want: card +
			"  sick: driver xocl: dev_offline is 1\n" + render},
		{name: "XRT without these attributes", recording: "fpga-xrt", edits: []string{"A: dev_offline=0\\n\n", "", "A: ready=0x1\\n\n", ""}, want: card + render},
		{name: "XRT off the bus", recording: "fpga-xrt", edits: []string{"config=ee100550", "config=ffffffff"}, want: card +
			"  sick: the PCI configuration space does not answer: the device has fallen off the bus\n" + render},
		{name: "XRT without a node", recording: "fpga-xrt", edits: []string{"drm/renderD129", "drm/other"}, want: card +
			"  held back: not complete: driver xocl has created no render node"},
		{name: "whose management function is not ready", recording: "fpga-xrt", edits: []string{"A: ready=1\\n", "A: ready=0\\n"}, want: card +
			"  sick: driver xclmgmt: ready is 0\n" + render},
		{name: "whose management function is offline", recording: "fpga-xrt", edits: []string{
			management, "H: config=ee100450\nA: dev_offline=1\\n\nA: numa_node=0\\n\nA: ready=1\\n",
		}, want: card + "  sick: driver xclmgmt: dev_offline is 1\n" + render},
		{name: "whose management function is off the bus", recording: "fpga-xrt", edits: []string{"config=ee100450", "config=ffffffff"}, want: card +
			"  sick: management function 0000:18:00.0: " + silent + render},
		{name: "whose management function is asleep", recording: "fpga-xrt", edits: []string{
			"config=ee100450", "config=ffffffff\nA: power/runtime_status=suspended\\n",
		}, want: card + render},
		{name: "in a virtual machine, without its management function", recording: "fpga-xrt", edits: []string{
			"0000:18:00.0/xrt_mgmt", "other/xrt_mgmt", "drivers/xclmgmt", "drivers/other", management, "H: config=ffffffff",
		}, want: card + render},
		{name: "beside the management function of another card", recording: "fpga-xrt", edits: []string{
			"0000:18:00.0", "0000:1a:00.0", "A: ready=1\\n", "A: ready=0\\n",
		}, want: card + render},
		{name: "in a bad state", recording: "fpga-xrt", edits: []string{"A: ready=0x1\\n", "A: device_bad_state=1\\n\nA: ready=0x1\\n"}, want: card +
			"  sick: driver xocl: device_bad_state is 1\n" + render},
		{name: "that says nonsense", recording: "fpga-xrt", edits: []string{"A: ready=0x1\\n", "A: ready=yes\\n"}, want: card +
			"  sick: read /sys/devices/pci0000:17/0000:17:00.0/0000:18:00.1/ready: \"yes\" is not a number\n" + render},
	})
}

// TestXDMA checks that a container gets no node for the registers or descriptors of an engine, or for the debugger.
func TestXDMA(t *testing.T) {
	const card = "fpga-0000:5e:00.0 numa0\n"
	const nodes = "  /dev/xdma0_bypass\n  /dev/xdma0_c2h_0\n  /dev/xdma0_events_0\n  /dev/xdma0_events_1\n  /dev/xdma0_h2c_0\n  /dev/xdma0_user"
	testSights(t, []sight{
		{name: "complete", recording: "fpga-xdma", want: card + nodes},
		{name: "found second", recording: "fpga-xdma", edits: []string{"xdma0_", "xdma1_"}, want: card +
			"  /dev/xdma1_bypass\n  /dev/xdma1_c2h_0\n  /dev/xdma1_events_0\n  /dev/xdma1_events_1\n  /dev/xdma1_h2c_0\n  /dev/xdma1_user"},
		{name: "without channels", recording: "fpga-xdma", edits: []string{"xdma/xdma0_h2c", "xdma/other_h2c", "xdma/xdma0_c2h", "xdma/other_c2h"}, want: card +
			"  held back: not complete: driver xdma has created no DMA channel"},
		{name: "a node that udev has not made yet", recording: "fpga-xdma", edits: []string{"N: xdma0_user", "N: other"}, want: card +
			"  held back: not complete: /dev/xdma0_user is missing"},
		{name: "off the bus", recording: "fpga-xdma", edits: []string{"config=ee103f90", "config=ffffffff"}, want: card +
			"  sick: the PCI configuration space does not answer: the device has fallen off the bus\n" + nodes},
	})
}
