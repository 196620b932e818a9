// SPDX-License-Identifier: Apache-2.0

package device

// Faults that events report and sysfs does not show afterwards, and the events that end them.
//
// Follows: drivers/pci/pci-driver.c (pci_uevent_ers) and pcie/err.c (pcie_do_recovery);
// Documentation/PCI/pci-error-recovery.rst.

import (
	"path"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// Mark is what an event, or a counter, says of the hardware at a sysfs path and of everything below it. The inventory keeps
// it until another mark replaces it or takes it back. As long as the mark stands, the hardware there is unhealthy.
//
// Two kinds of marks take another back. One has the same source and no reason. The other has no source and is a fresh start,
// when the hardware was taken away or put in, or a driver was bound to it. If one of them is about a part of the hardware
// that is marked, the rest stays marked.
type Mark struct {
	SysPath string `json:"sysfsPath"`
	Source  string `json:"source"`            // a mark replaces those of the same source at its path, "a" takes back "a/b" too, empty takes back all
	Reason  string `json:"reason"`            // for people, or empty if the mark takes back
	Warning bool   `json:"warning,omitempty"` // the hardware is usable all the same
}

// Notice returns the mark that an event leaves.
func Notice(e udev.Event) (m Mark, ok bool) {
	if e.Device.Properties.Value("SYNTH_UUID") != "" { // "udevadm trigger" says nothing of the hardware
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
		if c.Notice == nil {
			continue
		}
		if m, ok := c.Notice(e); ok {
			return m, true
		}
	}
	return Mark{}, false
}

// noticeRecovery reads what the kernel reports while it recovers a PCI function from an error. It reports the beginning and
// the success of the function. It reports the failure of each function below the bridge (report_perm_failure_detected, in
// Linux 6.12.107). Older kernels report the failure of the bridge itself. Only a fresh start ends that.
func noticeRecovery(d udev.Device) (Mark, bool) {
	m := Mark{SysPath: d.SysPath, Source: "recovery"}
	switch d.Properties.Value("ERROR_EVENT") {
	case "BEGIN_RECOVERY":
		m.Reason = "the kernel is recovering it from a PCIe error"
	case "FAILED_RECOVERY":
		m.Reason = "the kernel could not recover it from a PCIe error: bind its driver again, or replace it"
	case "SUCCESSFUL_RECOVERY":
	default:
		return Mark{}, false
	}
	return m, d.Subsystem == "pci"
}

// FunctionIn returns the part of a sysfs path that is the nearest PCI function, or "". It goes by the names alone, so the
// device may be gone.
func FunctionIn(sysPath string) string {
	for p := range sysfs.Up(sysPath) {
		if udev.IsPCIAddress(path.Base(p)) {
			return p
		}
	}
	return ""
}
