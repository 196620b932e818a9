// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
)

// remedy is what to do about a reason that keeps a device from pods; empty: nothing that would fit every machine.
func remedy(reason string) string {
	for _, r := range [...]struct{ in, do string }{
		{"upper and lower case differ", "write the pattern as udev has it"},
		{"/dev/nvidia-uvm is missing", "nvidia-modprobe -u -c 0, and at boot nvidia-persistenced"},
		{"is missing", "its driver makes that: is it loaded, and what does dmesg say of it?"},
		{"is dead", "dmesg; take the drive out and put it in again, or replace it"},
		{"erase it by hand", "nothing, if the data is needed; else erase it: metalplugctl reset ID --scrub zero"},
		{"cannot be proven empty", "systemctl status metalplug-reset.socket"},
		{"no resource of class", "add a [[resource]] of that class"},
		{"no class or resource takes it", "add this"},
		{"it has no device node itself", "ask for one of these"},
		{"excluded by", "that is what the configuration says: take the exclude out if it is not meant"},
		{"no resource takes it", "compare match and exclude with: metalplugctl check --explain"},
		{"cordoned", "ask who did it; then: metalplugctl uncordon ID"},
		{"is mounted on", "nothing, if this host is to have it"},
		{"metalplugctl adopt", "nothing, if the data is needed; else erase and offer the disk: metalplugctl adopt ID"},
		{"--scrub zero erases and offers it", "nothing, if the data is needed; else: metalplugctl reset ID --scrub zero"},
		{"unproven: it has no wwid", "give a virtual disk a serial number, or run Linux 5.15 or later"},
		{"it holds data", "nothing, if somebody needs that; else empty it: blkdiscard --zeroout"},
	} {
		if strings.Contains(reason, r.in) {
			return r.do
		}
	}
	return ""
}

// reconnect is what to do about a resource that the kubelet is not connected to, by what the daemon complains of.
func reconnect(complaint string) string {
	const unset = "remove device_plugins from [paths]: the kubelet always uses " + devicePluginDir
	for _, r := range [...]struct{ in, do string }{
		{"held back", endOther},
		{"is invalid", "give the resource another name: the kubelet does not take this one"},
		{"hung up", "ss -xlp names what listens there: end it, then: systemctl restart kubelet"},
		{"unknown service", "ss -xlp names what listens there: end it, then: systemctl restart kubelet"},
		{"no answer after", "systemctl restart kubelet; if that does not help, ss -xlp names what listens there"},
		{"connection refused", "the socket is left over from a kubelet that has ended: systemctl start kubelet"},
		{"is no socket", "remove it, then: systemctl restart kubelet"},
		{"permission denied", "run metalplugd as root: the kubelet's directory is root's"},
		{"not a directory", unset},
		{"read-only file system", unset + "; or mount that to be written to"},
		{"no such file or directory", "systemctl start kubelet; or " + unset},
		{"opened no stream", "journalctl -u kubelet -e | grep device; then: systemctl restart metalplugd"},
		{"not configured any more", "nothing, if that is meant; else add it again"},
	} {
		if strings.Contains(complaint, r.in) {
			return r.do
		}
	}
	return "journalctl -u metalplugd -e -g 'not registered|not listening|waiting for'"
}

// withheld are the kinds of hardware that are seen and not offered, though nothing that the host does with it is in the
// way: one finding for each reason. What the host uses, and what is no device for pods, is as it should be.
func (d *doctor) withheld(check string) []finding {
	type kind struct{ class, reason string }
	count := make(map[kind]int)
	var kinds []kind
	for _, v := range d.devices {
		k := kind{v.Class, v.Reason}
		if v.Resource != "" || !isWithheld(v) {
			continue
		}
		if count[k] == 0 {
			kinds = append(kinds, k)
		}
		count[k]++
	}
	slices.SortFunc(kinds, func(a, b kind) int { return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.reason, b.reason)) })
	var found []finding
	for _, k := range kinds {
		find := warn
		if strings.HasPrefix(k.reason, notComplete) {
			find = fail
		}
		found = append(found, find(check, cmp.Or(remedy(k.reason), "metalplugctl list --all"),
			"%s", fmt.Sprintf("%d of class %s not offered: %s", count[k], k.class, k.reason))...)
	}
	return found
}

// How the reasons begin that [doctor.withheld] is about (daemon/device, reason.go and explain.go).
const (
	notComplete = "not complete"
	noResource  = "no resource"
	unproven    = "unproven"
)

// isWithheld excludes the disks for which no file names a resource: that is how the package is installed.
func isWithheld(v control.Device) bool {
	if v.Class == device.NVMe.Name && v.Reason == noResource+" of class nvme is configured" {
		return false
	}
	adoptable := strings.HasPrefix(v.Reason, unproven) && strings.Contains(v.Reason, "erases and offers it") // no read makes that good
	return adoptable || strings.HasPrefix(v.Reason, notComplete) || strings.HasPrefix(v.Reason, noResource)
}
