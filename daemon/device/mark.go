// SPDX-License-Identifier: Apache-2.0

package device

// This file handles faults that appear in events but not in sysfs, and the events that clear these faults.
//
// Follows: drivers/pci/pci-driver.c (pci_uevent_ers) and pcie/err.c (pcie_do_recovery);
// Documentation/PCI/pci-error-recovery.rst.

import (
	"cmp"
	"path"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// Mark is a fault that an event or counter reports. Mark covers the hardware at a sysfs path and everything below it. The
// inventory keeps a mark until another mark replaces or clears it. Until then, the hardware is unhealthy, unless the mark is a
// warning.
//
// Two kinds of marks clear other marks. A mark without a reason clears the mark with the same source. A mark without a source
// clears all marks, because it reports a fresh start. A fresh start means that the hardware was removed or inserted, or that a
// driver was bound to the hardware. If the clearing mark covers only part of the marked hardware, the rest keeps its mark.
type Mark struct {
	SysPath string `json:"sysfsPath"`
	// A mark replaces the marks with the same source at its path. A mark with source "a" also clears marks with source "a/b". A
	// mark with an empty source clears all marks.
	Source  string `json:"source"`
	Reason  string `json:"reason"`            // human-readable reason, or empty if the mark clears others
	Warning bool   `json:"warning,omitempty"` // the hardware is still usable
}

// Notice returns the mark that an event causes. If the event causes no mark, ok is false.
func Notice(e udev.Event) (m Mark, ok bool) {
	if e.Device.Properties.Value("SYNTH_UUID") != "" { // events from "udevadm trigger" do not mean that the hardware has changed
		return Mark{}, false
	}
	switch e.Action {
	case "add", "remove", "bind":
		return Mark{SysPath: e.Device.SysPath}, true
	case "change":
		if m, ok := noticeRecovery(e.Device); ok {
			return m, true
		}
	}
	for _, c := range Classes {
		if c.Notice != nil {
			if m, ok := c.Notice(e); ok {
				return m, true
			}
		}
	}
	return Mark{}, false
}

// noticeRecovery evaluates the kernel's reports about how a PCI function recovers from an error. The kernel reports the start and
// the success of the recovery for the function itself. Linux 6.12.107 reports a failure for each function below the bridge
// (report_perm_failure_detected). Older kernels report a failure only for the bridge. Only a fresh start clears the mark that a
// failure causes.
func noticeRecovery(d udev.Device) (Mark, bool) {
	m := Mark{SysPath: d.SysPath, Source: "recovery"}
	switch d.Properties.Value("ERROR_EVENT") {
	case "BEGIN_RECOVERY":
		m.Reason = "the kernel is recovering the device from a PCIe error"
	case "FAILED_RECOVERY":
		m.Reason = "the kernel could not recover the device from a PCIe error: bind the driver again, or replace the device"
	case "SUCCESSFUL_RECOVERY":
	default:
		return Mark{}, false
	}
	return m, d.Subsystem == "pci"
}

// FunctionIn returns the path of the nearest PCI function at or above a sysfs path, or "". FunctionIn uses only the names in the
// path, so the device may be absent.
func FunctionIn(sysPath string) string {
	for p := range sysfs.Up(sysPath) {
		if udev.IsPCIAddress(path.Base(p)) {
			return p
		}
	}
	return ""
}

// Function returns the sysfs path of the PCI function at or above the device. If the path contains no PCI function, Function
// returns the first function that leads to the device. For example, an NVMe namespace may have several controllers, each with its
// own function. If no function leads to the device, Function returns "".
func (d *Device) Function() string { return cmp.Or(d.firstFunction, FunctionIn(d.SysPath)) }
