// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
)

// Remedies for a resource that is not served. What else there is to do is part of the reason.
const (
	// restart makes a configuration apply of which a reload takes over only a part.
	restart   = "systemctl restart metalplugd"
	endOther  = "nothing, if the other plugin is meant; else end it, or set takeover = true in a [[resource]] of that name"
	reconnect = "systemctl start kubelet; if it runs: journalctl -u metalplugd -e -g 'not registered|not listening|waiting for'"
)

// remedy returns what to do about a device that pods cannot get; empty where that is part of the reason.
func remedy(d control.Device) string {
	if d.Cordoned {
		return "ask who did it; then: metalplugctl uncordon " + d.ID
	}
	return ""
}

// How the reasons begin that [withheld] is about (daemon/device, reason.go and explain.go).
const (
	notComplete = "not complete"
	noResource  = "no resource"
	unproven    = "unproven"
)

// withheld notes the hardware that is seen and not offered, though nothing that the host does with it is in the way: one
// finding for each reason. What the host uses, and what is no device for pods, is as it should be.
func withheld(d *doctor) {
	type kind struct{ class, reason string }
	kinds, by := alike(d.devices, func(v control.Device) kind {
		if v.Resource != "" || !isWithheld(v) {
			return kind{}
		}
		return kind{v.Class, v.Reason}
	})
	slices.SortFunc(kinds, func(a, b kind) int { return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.reason, b.reason)) })
	for _, k := range kinds {
		find := d.warn
		if strings.HasPrefix(k.reason, notComplete) {
			find = d.fail
		}
		first := by[k][0]
		find("metalplugctl why "+cmp.Or(first.ID, first.SysPath), "%d of class %s not offered: %s", len(by[k]), k.class, k.reason)
	}
}

// isWithheld excludes the disks for which no file names a resource: that is how the package is installed.
func isWithheld(v control.Device) bool {
	if v.Class == device.NVMe.Name && v.Reason == noResource+" of class nvme is configured" {
		return false
	}
	adoptable := strings.HasPrefix(v.Reason, unproven) && strings.Contains(v.Reason, "erases and offers it") // no read makes that good
	return adoptable || strings.HasPrefix(v.Reason, notComplete) || strings.HasPrefix(v.Reason, noResource)
}
