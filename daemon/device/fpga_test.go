// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"
)

func TestFPGA(t *testing.T) {
	const port = `fpga-0000:3b:00.0-port0 "DFL port, accelerator d8424dc4a4a3c413f89e433683f9040b" numa1` + "\n"
	const opae = `fpga-0000:86:00.0-port0 "DFL port, accelerator d8424dc4a4a3c413f89e433683f9040b" numa1` + "\n"
	testSights(t, []sight{
		{name: "port", recording: "fpga-dfl", want: port + "  /dev/dfl-port.0"},
		{name: "port found second", recording: "fpga-dfl", edits: []string{"dfl-port.0", "dfl-port.1"}, want: port + "  /dev/dfl-port.1"},
		{name: "second port", recording: "fpga-dfl", edits: []string{`A: id=0\n`, `A: id=1\n`, `A: afu_id=d8424dc4a4a3c413f89e433683f9040b` + "\\n\n", ""}, want: `
			fpga-0000:3b:00.0-port1 numa1
			  /dev/dfl-port.0`},
		{name: "driver not bound", recording: "fpga-dfl", edits: []string{
			"L: driver=../../../../../../../bus/platform/drivers/dfl-port\n", "", "E: DRIVER=dfl-port\n", "",
		}, want: `
			(dfl-port.0)
			  held back: not complete: driver dfl-port is not bound: load the dfl_afu module, or intel-fpga-afu of OPAE`},
		{name: "attributes not there yet", recording: "fpga-dfl", edits: []string{"A: id=0\\n\n", ""}, want: `
			(dfl-port.0)
			  held back: not complete: the port number is unknown: read /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/fpga_region/region0/dfl-port.0/id: gone: no such file or directory`},
		{name: "latched error", recording: "fpga-dfl", edits: []string{"errors/errors=0x0", "errors/errors=0x8000000000000002"}, want: port +
			"  sick: port error: errors/errors is 0x8000000000000002\n  /dev/dfl-port.0"},
		{name: "first error", recording: "fpga-dfl", edits: []string{"errors/first_error=0x0", "errors/first_error=0x10"}, want: port +
			"  sick: port error: errors/first_error is 0x10\n  /dev/dfl-port.0"},
		{name: "no error feature", recording: "fpga-dfl", edits: []string{"A: errors/errors=0x0\\n\nA: errors/first_error=0x0\\n\n", ""}, want: port +
			"  /dev/dfl-port.0"},
		{name: "slowed down", recording: "fpga-dfl", edits: []string{"power_state=0x0", "power_state=0x2"}, want: port + "  /dev/dfl-port.0"},
		{name: "stopped", recording: "fpga-dfl", edits: []string{"power_state=0x0", "power_state=0x6"}, want: port +
			"  sick: the port has stopped the accelerator, which draws too much power (AP6)\n  /dev/dfl-port.0"},
		{name: "below no PCI function", recording: "fpga-dfl", edits: []string{"/0000:3a:00.0/0000:3b:00.0", "/a/b"}, want: `
			(dfl-port.0)
			  held back: the port has no PCI parent that identifies the port`},
		{name: "programmed", recording: "fpga-dfl", edits: []string{"state=unknown", "state=operating"}, want: port + "  /dev/dfl-port.0"},
		{name: "being programmed", recording: "fpga-dfl", edits: []string{"state=unknown", "state=write"}, want: port + "  /dev/dfl-port.0"},
		{name: "programmed badly", recording: "fpga-dfl", edits: []string{"state=unknown", "state=write complete error"}, want: port +
			"  sick: the programming of the FPGA ended in \"write complete error\" (fpga0): program the FPGA again\n  /dev/dfl-port.0"},
		{name: "without power", recording: "fpga-dfl", edits: []string{"state=unknown", "state=power off"}, want: port +
			"  sick: the programming of the FPGA ended in \"power off\" (fpga0): program the FPGA again\n  /dev/dfl-port.0"},
		{name: "another card programmed badly", recording: "fpga-dfl", edits: []string{
			"0000:3b:00.0/fpga_region/region0/dfl-fme.0/dfl-fme-mgr.0", "0000:3c:00.0/fpga_region/region1/dfl-fme.1/dfl-fme-mgr.1",
			"state=unknown", "state=write error",
		}, want: port + "  /dev/dfl-port.0"},
		{name: "latched and programmed badly", recording: "fpga-dfl", edits: []string{
			"errors/errors=0x0", "errors/errors=0x1", "state=unknown", "state=write error",
		}, want: port + "  sick: port error: errors/errors is 0x1; the programming of the FPGA ended in \"write error\" (fpga0): program the FPGA again\n  /dev/dfl-port.0"},
		{name: "OPAE", recording: "fpga-opae", want: opae + "  /dev/intel-fpga-port.0"},
		{name: "OPAE, latched error", recording: "fpga-opae", edits: []string{"errors/errors=0x0", "errors/errors=0x4000000000000"}, want: opae +
			"  sick: port error: errors/errors is 0x4000000000000\n  /dev/intel-fpga-port.0"},
		{name: "OPAE, driver not bound", recording: "fpga-opae", edits: []string{"/drivers/intel-fpga-port", "/drivers/other"}, want: `
			(intel-fpga-port.0)
			  held back: not complete: driver intel-fpga-port is not bound: load the dfl_afu module, or intel-fpga-afu of OPAE`},
		{name: "OPAE, off the bus", recording: "fpga-opae", edits: []string{"config=8680c409", "config=ffffffff"}, want: opae +
			"  sick: the PCI configuration space does not answer: the device has fallen off the bus\n  /dev/intel-fpga-port.0"},
	})
}

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
