// SPDX-License-Identifier: Apache-2.0

package device

import "testing"

func TestFPGA(t *testing.T) {
	const port = `fpga-0000:3b:00.0-port0 "DFL port, accelerator d8424dc4a4a3c413f89e433683f9040b" numa1` + "\n"
	const card = `fpga-0000:18:00.1 "Alveo U250 XDMA Platform" numa0` + "\n"
	const render = "  /dev/dri/renderD129 = /dev/dri/by-path/pci-0000:18:00.1-render"
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
			  held back: not complete: driver dfl-port is not bound: load the module dfl_afu`},
		{name: "attributes not there yet", recording: "fpga-dfl", edits: []string{"A: id=0\\n\n", ""}, want: `
			(dfl-port.0)
			  held back: not complete: the number of its port is not known: read /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/fpga_region/region0/dfl-port.0/id: gone: no such file or directory`},
		{name: "latched error", recording: "fpga-dfl", edits: []string{"errors/errors=0x0", "errors/errors=0x8000000000000002"}, want: port +
			"  sick: port error: errors/errors is 0x8000000000000002\n  /dev/dfl-port.0"},
		{name: "first error", recording: "fpga-dfl", edits: []string{"errors/first_error=0x0", "errors/first_error=0x10"}, want: port +
			"  sick: port error: errors/first_error is 0x10\n  /dev/dfl-port.0"},
		{name: "no error feature", recording: "fpga-dfl", edits: []string{"A: errors/errors=0x0\\n\nA: errors/first_error=0x0\\n\n", ""}, want: port +
			"  /dev/dfl-port.0"},
		{name: "slowed down", recording: "fpga-dfl", edits: []string{"power_state=0x0", "power_state=0x2"}, want: port + "  /dev/dfl-port.0"},
		{name: "stopped", recording: "fpga-dfl", edits: []string{"power_state=0x0", "power_state=0x6"}, want: port +
			"  sick: the port has stopped the accelerator, which draws too much power (AP6)\n  /dev/dfl-port.0"},
		{name: "below no PCI function", recording: "fpga-dfl", edits: []string{"E: SUBSYSTEM=pci\n", "E: SUBSYSTEM=other\n"}, want: `
			(dfl-port.0)
			  held back: it is below no PCI function, by which it could be recognised`},
		{name: "XRT", recording: "fpga-xrt", want: card + render},
		{name: "XRT not ready", recording: "fpga-xrt", edits: []string{"ready=1", "ready=0"}, want: card +
			"  sick: driver xocl: ready is \"0\"\n" + render},
		{name: "XRT offline", recording: "fpga-xrt", edits: []string{"dev_offline=0", "dev_offline=1"}, want: card +
			"  sick: driver xocl: dev_offline is \"1\"\n" + render},
		{name: "XRT without these attributes", recording: "fpga-xrt", edits: []string{"A: dev_offline=0\\n\n", "", "A: ready=1\\n\n", ""}, want: card + render},
		{name: "XRT off the bus", recording: "fpga-xrt", edits: []string{"config=ee100550", "config=ffffffff"}, want: card +
			"  sick: its PCI configuration space does not answer: it has fallen off the bus\n" + render},
		{name: "XRT without a node", recording: "fpga-xrt", edits: []string{"drm/renderD129", "drm/other"}, want: card +
			"  held back: not complete: driver xocl has made no render node"},
	})
}
