// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
)

// These texts are remedies for a resource that is not registered. In other states, the reason contains the remedy.
const (
	// restartRemedy is the remedy for settings that take effect only at a restart.
	restartRemedy     = "systemctl restart metalplugd"
	otherPluginRemedy = "nothing, if the other plugin is intended; otherwise stop it; if that does not help, set takeover = true in a [[resource]] of that name"
	reconnectRemedy   = "systemctl start kubelet; if the kubelet is running: journalctl -u metalplugd -e -g 'not registered|not listening|waiting for'"
	// moveFileRemedy is the remedy if a file blocks the path of the kubelet's directory, so that the kubelet cannot start.
	moveFileRemedy = "move away the file that is in the path of the directory, and restart the kubelet, which creates the directory"
)

// registrationRemedy returns the remedy for a resource whose devices the kubelet does not see. The parameter state contains
// [api.Resource.Held] or ends with [api.Resource.Complaint].
func registrationRemedy(state string) string {
	switch {
	case strings.Contains(state, "held back: "):
		return otherPluginRemedy
	case strings.HasSuffix(state, "not a directory"):
		return moveFileRemedy
	}
	return reconnectRemedy
}

// remedy returns the remedy for a device that pods cannot get. remedy returns "" if the reason already contains a remedy.
func remedy(d api.Device) string {
	if !d.Cordoned {
		return ""
	}
	id := d.ID
	for _, member := range d.Members {
		if strings.Contains(d.Reason, member+": cordoned") {
			id = member
		}
	}
	return "ask the user who cordoned the device, then: metalplugctl uncordon " + id
}

// [complaint] checks whether a reason begins with one of these texts (daemon/device, reason.go and explain.go).
const (
	notComplete = "not complete"
	noResource  = "no resource"
	unproven    = "unproven"
)

// complaint describes a device's problem in a text that can follow the device's name. The text is "" if the device works, is in
// use by the host, or is not meant for pods.
func complaint(v api.Device) (level, text string) {
	switch {
	case v.Resource == "" && strings.HasPrefix(v.Reason, notComplete):
		return levelFail, " is not offered: " + v.Reason
	case v.Resource == "" && isWithheld(v):
		return levelWarn, " is not offered: " + v.Reason
	case v.Resource == "":
		return "", ""
	case v.Cordoned:
		return levelWarn, " is " + reasonOf(v)
	case v.Health != "Healthy":
		return levelFail, " is unhealthy: " + v.Reason
	case v.Warning != "":
		return levelWarn, ": " + v.Warning
	}
	return "", ""
}

// isWithheld reports whether an operator could make the device available. Disks without a resource are not withheld,
// because most nodes have disks that are not for pods.
func isWithheld(v api.Device) bool {
	if strings.HasPrefix(v.Reason, unproven) { // in other cases, metalplug is still reading the disk
		return strings.Contains(v.Reason, "erases and offers the disk")
	}
	return strings.HasPrefix(v.Reason, noResource) && v.Class != device.NVMeName
}
