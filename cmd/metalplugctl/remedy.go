// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
)

// Remedies for a resource that is not served. The reason has the other remedies.
const (
	// restart makes a configuration apply of which a reload takes over only a part.
	restart   = "systemctl restart metalplugd"
	endOther  = "nothing, if the other plugin is meant; else end it, or set takeover = true in a [[resource]] of that name"
	reconnect = "systemctl start kubelet; if it runs: journalctl -u metalplugd -e -g 'not registered|not listening|waiting for'"
)

// servedBy returns what to do about a resource whose devices the kubelet does not see.
func servedBy(r api.Resource) string {
	if r.Held != "" {
		return endOther
	}
	return reconnect
}

// remedy returns what to do about a device that pods cannot get. It is empty where that is part of the reason.
func remedy(d api.Device) string {
	if d.Cordoned {
		return "ask who did it; then: metalplugctl uncordon " + d.ID
	}
	return ""
}

// How the reasons begin that [complaint] is about (daemon/device, reason.go and explain.go).
const (
	notComplete = "not complete"
	noResource  = "no resource"
	unproven    = "unproven"
)

// complaint returns what is wrong with a device, in words that follow its name, or empty. Hardware that is not offered
// since the host uses it, or since it is not for pods, is as it should be.
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

// isWithheld reports whether a device could be offered, if the operator did something. It excludes the disks for which no
// file names a resource: that is how the package is installed.
func isWithheld(v api.Device) bool {
	if strings.HasPrefix(v.Reason, unproven) { // else it is being read
		return strings.Contains(v.Reason, "erases and offers it")
	}
	return strings.HasPrefix(v.Reason, noResource) && (v.Class != device.NVMe.Name || v.Reason != noResource+" of class nvme is configured")
}
