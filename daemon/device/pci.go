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

// pciVendor returns the vendor ID of a PCI function as in the kernel's property PCI_ID, with four hexadecimal digits in upper
// case.
func pciVendor(u udev.Device) string {
	vendor, _, _ := strings.Cut(u.Properties.Value("PCI_ID"), ":")
	return vendor
}

// asleep reports whether a PCI function is suspended. Reading its configuration space would wake the bridge above it, and
// also the function if it is in D3cold (pci_config_pm_runtime_get in drivers/pci/pci.c).
func (h *Host) asleep(function string) bool {
	status, err := h.Attr(function, "power/runtime_status")
	return err == nil && status == "suspended"
}

// pciAnswers returns an error if a PCI function no longer answers. If the parameter wake is false, it assumes that a suspended
// function answers. After a surprise removal, each byte that is read is 0xff (PCI_SET_ERROR_RESPONSE), while the cached
// attributes "vendor" and "device" stay the same. The vendor and device ID of a virtual function also consist of bytes 0xff (PCI
// Express, Single Root I/O Virtualization, VF Vendor ID). However, the next four bytes, which are the command and status
// registers, contain other values.
func (h *Host) pciAnswers(sysPath string, wake bool) error {
	if !wake && h.asleep(sysPath) {
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
