//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"encoding/binary"
	"fmt"
	"path"
	"strings"
	"testing"
)

// function returns the sysfs path of the PCI function of a class device.
func (s *story) function(class string) string {
	return s.m.Sh("p=$(realpath " + class + "/device); while [ ! -e $p/vendor ] || [ ! -e $p/config ]; do p=${p%/*}; done; echo $p")
}

// PCI Express errors as bits of the uncorrectable error status register (PCI_ERR_UNC_POISON_TLP and PCI_ERR_UNC_MALF_TLP in
// include/uapi/linux/pci_regs.h). By default, the first error is nonfatal and the second is fatal.
const (
	poisoned  = 1 << 12
	malformed = 1 << 18
)

// signal makes a QEMU device report a PCI Express error. The device itself sets the error in its configuration space.
func (s *story) signal(t *testing.T, id, what string) {
	t.Helper()
	said, err := s.m.QMP().Human("pcie_aer_inject_error " + id + " " + what)
	if err != nil || !strings.HasPrefix(said, "OK ") {
		t.Fatalf("inject %s into %s: %s%v", what, id, said, err)
	}
}

// inject makes the kernel detect a PCI Express error of a function. It passes simulated register values of the function and
// its root port to the kernel (aer_inject, struct aer_error_inj of drivers/pci/pcie/aer_inject.c). The rest of the error
// handling is real.
func (s *story) inject(t *testing.T, function string, status uint32) {
	t.Helper()
	var domain uint32
	var bus, device, number uint8
	if _, err := fmt.Sscanf(path.Base(function), "%x:%x:%x.%x", &domain, &bus, &device, &number); err != nil {
		t.Fatal(err)
	}
	b := append(make([]byte, 0, 32), bus, device, number, 0)
	b = binary.LittleEndian.AppendUint32(b, status)
	b = binary.LittleEndian.AppendUint32(append(b, make([]byte, 20)...), domain) // no correctable error, no header
	var octal strings.Builder
	for _, c := range b {
		fmt.Fprintf(&octal, `\%03o`, c)
	}
	s.m.Sh("modprobe aer_inject; printf '" + octal.String() + "' > /dev/aer_inject")
}

// rebind unbinds and binds a function's driver, which restarts the hardware.
func (s *story) rebind(function string) {
	address := path.Base(function)
	s.m.Sh("cd $(realpath " + function + "/driver); echo " + address + " > unbind; echo " + address + " > bind")
}

// testUnrecovered uses a virtio driver, because virtio drivers do not handle errors.
func testUnrecovered(s *story, t *testing.T) {
	const name = "renderD128"
	function := s.function("/sys/class/drm/renderD128")
	// Current kernels report this error for the function. Older kernels report it for the bridge.
	s.expect(t, change{
		name: "PCIe error, not recovered", act: func() { s.signal(t, "gpu", "POISON_TLP") }, resource: render, by: -1,
		action: "change", device: always(path.Base(function)),
	})
	s.because(t, name, "the kernel could not recover the device from a PCIe error")
	s.because(t, name, "1 or more nonfatal PCIe errors (aer_dev_nonfatal)")
	s.expect(t, change{
		name: "driver bound again", act: func() { s.rebind(function) }, resource: render, by: 1,
		action: "bind", device: always(path.Base(function)),
	})
	s.because(t, name, "")
}

// testRecovered uses e1000e, because this driver handles errors. The clock on its card stays usable, and the operator gets a
// warning. QEMU 7.2 cannot signal this error. Its e1000e lacks the enable bits (Device Control reads 0 after any write). Its
// virtio devices have these bits, but their drivers do not handle errors.
func testRecovered(s *story, t *testing.T) {
	const name = "ptp0"
	s.inject(t, s.function("/sys/class/ptp/ptp0"), poisoned)
	s.because(t, name, "1 or more nonfatal PCIe errors (aer_dev_nonfatal)")
	s.await(t, clock, 1)
	if d := s.shown(t, name); d.Reason != "" {
		t.Errorf("after the recovery: %+v", d)
	}
}

// fatal injects an error with data loss. The kernel resets the link. QEMU's slots do not support this, so the kernel
// stops the recovery ("Data Link Layer Link Active not set"). Then the test unplugs the function and plugs it in again.
// Linux 6.12 does not count fatal errors of endpoints (aer_get_device_error_info reads nothing over a possibly bad
// link). So the messages about the recovery are the only evidence.
func fatal(s *story, t *testing.T) {
	const name = "ptp0"
	function := s.function("/sys/class/ptp/ptp0")
	s.expect(t, change{
		name: "fatal PCIe error", act: func() { s.inject(t, function, malformed) }, resource: clock, by: -1,
		action: "change", device: always(path.Base(function)),
	})
	s.because(t, name, "the kernel could not recover the device from a PCIe error")
	s.expect(t, change{
		name: "function again", resource: clock, by: 1,
		act:    func() { s.m.Sh("echo 1 > " + function + "/remove; echo 1 > /sys/bus/pci/rescan") },
		action: "add", device: always(path.Base(function)),
	})
	s.because(t, name, "")
	s.m.Run("modprobe", "-r", "aer_inject")
}
