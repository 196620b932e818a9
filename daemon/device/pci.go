// SPDX-License-Identifier: Apache-2.0

package device

// This file contains the health checks for all PCI hardware. They check whether a function answers, and examine its error
// counters and link width.
//
// Follows: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats (Linux counts without access to the hardware);
// drivers/pci/pci-sysfs.c (current_link_width, max_link_width).
//
// A fatal error means that the link was unreliable and that data was lost. A nonfatal error causes a warning, and the device
// stays healthy. Such an error may mean only that a function does not support a request. The driver can recover from all other
// nonfatal errors. If the recovery fails, the kernel reports this (mark.go). Corrected errors are normal.
//
// A link causes a warning if it has fewer lanes than both of its ends support, because its contacts may be worn or dirty. The
// link speed is not checked, because an idle link runs at a lower speed (ASPM).

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// Names of the attributes that count errors, for use in [Counter].
const (
	FatalErrors    = "aer_dev_fatal"
	NonfatalErrors = "aer_dev_nonfatal"
)

// Counter is the number of errors that the kernel has counted for a piece of hardware since the kernel discovered it.
type Counter struct {
	SysPath string // sysfs path of the hardware
	Name    string // name of the attribute
	Value   uint64
	Fatal   bool // an increase makes the hardware unhealthy; otherwise, an increase causes a warning
}

// Mark returns the mark for a counter that has increased. The parameter "before" is the earlier value. Only a fresh start clears
// the mark (see [Mark]). The reason contains the increase, rounded down to a power of ten, so that most later errors do not
// change the reason.
func (c Counter) Mark(before uint64) Mark {
	least := uint64(1)
	for rise := c.Value - before; rise >= 10; rise /= 10 {
		least *= 10
	}
	kind := "nonfatal"
	if c.Fatal {
		kind = "fatal"
	}
	return Mark{SysPath: c.SysPath, Source: c.Name, Warning: !c.Fatal, Reason: fmt.Sprintf("%d or more %s PCIe errors (%s)", least, kind, c.Name)}
}

// pciHealth checks a device's functions. The device is unhealthy if no function answers. If the class needs all functions, the
// device is unhealthy as soon as one of them does not answer.
func pciHealth(h *Host, s *Sighting) {
	var silent []error
	for _, function := range s.Functions {
		s.Counters = append(s.Counters, errorCounters(h, function)...)
		if err := h.Answers(function, false); err != nil {
			silent = append(silent, err)
		} else {
			s.warn(linkWarning(h, function))
		}
	}
	if len(silent) > 0 && (s.Device.Class.NeedsAll || len(silent) == len(s.Functions)) && s.Health == nil {
		s.Health = silent[0]
	}
}

// Answers returns an error if a PCI function no longer answers. For a virtual function, Answers also returns an error if the
// physical function does not answer. If the parameter wake is false, a suspended function counts as answering.
func (h *Host) Answers(function string, wake bool) error {
	err := h.pciAnswers(function, wake)
	if physical := h.Resolve(function + "/physfn"); err == nil && physical != "" {
		if err = h.pciAnswers(physical, wake); err != nil {
			err = fmt.Errorf("physical function %s: %w", path.Base(physical), err)
		}
	}
	return err
}

// errorCounters reads the kernel's error counters for a function. The counters exist only if the kernel rather than the firmware
// handles the errors (AER). A line such as "TOTAL_ERR_FATAL 3" contains a counter's value. The names in the other lines depend on
// the kernel.
func errorCounters(h *Host, function string) []Counter {
	var counters []Counter
	for _, c := range []Counter{{Name: FatalErrors, Fatal: true}, {Name: NonfatalErrors}} {
		text, _ := h.Attr(function, c.Name) // the attribute is missing without AER
		for name, count := range sysfs.KeyValues(text, " ") {
			total, err := strconv.ParseUint(count, 10, 64)
			if strings.HasPrefix(name, "TOTAL_ERR_") && err == nil {
				c.SysPath, c.Value = function, total
				counters = append(counters, c)
			}
		}
	}
	return counters
}

// maxLinkWidth is the maximum number of lanes in a link. current_link_width shows a higher number if the function does not
// answer, and 0 if the function has no link.
const maxLinkWidth = 32

// linkWarning returns a warning if a link has fewer lanes than both of its ends support. The ends are the function and the bridge
// above it. It is normal for a card to have more lanes than its slot.
func linkWarning(h *Host, function string) string {
	if h.isSuspended(function) {
		return ""
	}
	width, most := h.Uint(function, "current_link_width"), h.Uint(function, "max_link_width")
	if width == 0 || width > maxLinkWidth || most > maxLinkWidth {
		return ""
	}
	if slot := h.Uint(path.Dir(function), "max_link_width"); slot > 0 {
		most = min(most, slot)
	}
	if width >= most {
		return ""
	}
	return fmt.Sprintf("the PCIe link of %s has %d of %d lanes", path.Base(function), width, most)
}

// The rest of this file finds a PCI function's address and vendor, and checks whether the function answers.
//
// Follows Documentation/ABI/testing/sysfs-bus-pci and drivers/pci/pci-sysfs.c.

// pciAddress returns the address of the PCI function at or above sysPath, such as 0000:3b:00.0, or "".
func pciAddress(sysPath string) string {
	if function := FunctionIn(sysPath); function != "" {
		return path.Base(function)
	}
	return ""
}

// pciVendor returns a PCI function's vendor ID. The ID has four hexadecimal digits in upper case, as in the kernel's property
// PCI_ID.
func pciVendor(u udev.Device) string {
	vendor, _, _ := strings.Cut(u.Properties.Value("PCI_ID"), ":")
	return vendor
}

// isSuspended reports whether a PCI function is suspended. Reading its configuration space would wake the bridge above the
// function. A function in D3cold would wake too (pci_config_pm_runtime_get in drivers/pci/pci.c).
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
