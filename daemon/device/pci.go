// SPDX-License-Identifier: Apache-2.0

package device

// The address of a PCI function, its vendor, and whether it still answers.
//
// Follows Documentation/ABI/testing/sysfs-bus-pci and drivers/pci/pci-sysfs.c.

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// pciAddress returns the address of the PCI function at or above sysPath, such as 0000:3b:00.0, or "".
func pciAddress(sysPath string) string {
	if function := FunctionIn(sysPath); function != "" {
		return path.Base(function)
	}
	return ""
}

// pciVendor returns the vendor of a PCI function as the kernel's PCI_ID has it, in four digits and upper case.
func pciVendor(u udev.Device) string {
	vendor, _, _ := strings.Cut(u.Properties.Value("PCI_ID"), ":")
	return vendor
}

// asleep reports whether a PCI function is suspended. To read its configuration space would wake it
// (pci_config_pm_runtime_get).
func (h *Host) asleep(function string) bool {
	status, err := h.Attr(function, "power/runtime_status")
	return err == nil && status == "suspended"
}

// pciAnswers returns why a PCI function does not answer any more, or nil. It does not ask one that sleeps. After a surprise removal every read gives all ones
// (PCI_SET_ERROR_RESPONSE), while the attributes vendor and device are cached and look as ever. A virtual function has no vendor
// and no device ID of its own, and gives ones for them (PCI Express, Single Root I/O Virtualization, VF Vendor ID), but it has a
// command and a status, which are the next four bytes.
func (h *Host) pciAnswers(sysPath string) error {
	if h.asleep(sysPath) {
		return nil
	}
	const size = 8
	head, err := h.ReadStart(sysPath+"/config", size)
	switch {
	case errors.Is(err, ErrGone):
		return nil // sysfs without it shows nothing
	case err != nil:
		return err
	case len(head) < 2:
		return fmt.Errorf("read %s/config: %w", sysPath, io.ErrUnexpectedEOF)
	case strings.HasPrefix(head, "\xff\xff") && (len(head) < size || head == strings.Repeat("\xff", size)):
		return errors.New("its PCI configuration space does not answer: it has fallen off the bus")
	}
	return nil
}
