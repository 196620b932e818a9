// SPDX-License-Identifier: Apache-2.0

package device

// This file finds the address and vendor of a PCI function, and checks whether the function answers.
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

// pciVendor returns the vendor ID of a PCI function. The ID has four hexadecimal digits in upper case, as in the kernel's
// property PCI_ID.
func pciVendor(u udev.Device) string {
	vendor, _, _ := strings.Cut(u.Properties.Value("PCI_ID"), ":")
	return vendor
}

// isSuspended reports whether a PCI function is suspended. A read of its configuration space would wake the bridge above the
// function. A function in D3cold would also wake (pci_config_pm_runtime_get in drivers/pci/pci.c).
func (h *Host) isSuspended(function string) bool {
	status, err := h.Attr(function, "power/runtime_status")
	return err == nil && status == "suspended"
}

// pciAnswers returns an error if a PCI function no longer answers. If the parameter wake is false, pciAnswers assumes that a
// suspended function answers. After a surprise removal, all bytes in a read are 0xff (PCI_SET_ERROR_RESPONSE). The attributes
// "vendor" and "device" are cached, so they do not show the removal. In the configuration space of a virtual function, the vendor
// and device ID are always 0xff bytes (PCI Express, Single Root I/O Virtualization, VF Vendor ID). Therefore, pciAnswers also
// reads the next four bytes, which are the command and status registers.
func (h *Host) pciAnswers(sysPath string, wake bool) error {
	if !wake && h.isSuspended(sysPath) {
		return nil
	}
	const size = 8
	head, err := h.ReadStart(sysPath+"/config", size)
	switch {
	case errors.Is(err, ErrGone):
		return nil // without this file, there is nothing to check
	case err != nil:
		return err
	case len(head) < 2:
		return fmt.Errorf("read %s/config: %w", sysPath, io.ErrUnexpectedEOF)
	case strings.HasPrefix(head, "\xff\xff") && (len(head) < size || head == strings.Repeat("\xff", size)):
		return errors.New("the PCI configuration space does not answer: the device has fallen off the bus")
	}
	return nil
}
