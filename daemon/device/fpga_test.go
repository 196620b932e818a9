// SPDX-License-Identifier: Apache-2.0

package device_test

import "testing"

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
