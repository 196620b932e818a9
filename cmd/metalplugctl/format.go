// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
)

// resourceSummary describes a resource in one line.
func resourceSummary(r api.Resource) string {
	text := fmt.Sprintf("%d of %d healthy", r.Healthy, r.Healthy+r.Unhealthy)
	if r.Cordoned > 0 {
		text += fmt.Sprintf(", %d cordoned", r.Cordoned)
	}
	if r.Allocated > 0 {
		text += fmt.Sprintf(", %d held", r.Allocated)
	}
	if r.Shares > 1 {
		text += fmt.Sprintf(", %d shares each", r.Shares)
	}
	state, _ := r.KubeletState()
	state, _, _ = strings.Cut(state, ":")
	return text + "; " + state
}

// healthCell returns the cell that shows a device's health. A cordoned device is shown as cordoned rather than Unhealthy, because
// a cordon does not mean that the device is faulty.
func healthCell(d api.Device) cell {
	switch {
	case d.Resource == "":
		return cell{text: "Not offered"}
	case d.Cordoned:
		return cell{"Cordoned", yellow}
	case d.Health == "Healthy" && d.Warning != "":
		return cell{"Healthy, warning", yellow}
	case d.Health == "Healthy":
		return cell{d.Health, green}
	}
	return cell{d.Health, red}
}

// cordonedBy returns text in brackets that says who cordoned a device and when. The text is empty if the time is unknown.
func cordonedBy(c *api.Cordon) string {
	if c.Since.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (by %s, %s)", c.By(), c.Since.UTC().Format(api.TimeFormat))
}

// reasonOf explains why a device is unhealthy or not offered. If the device is cordoned, the text also says who cordoned it and
// when, next to the cordon's reason. Other reasons may follow.
func reasonOf(d api.Device) string {
	c := cmp.Or(d.Cordon, &api.Cordon{})
	text := "cordoned: " + c.Reason
	return strings.Replace(d.Reason, text, text+cordonedBy(c), 1)
}

// podsOf returns all known pods that hold a device.
func podsOf(d api.Device) []api.Pod {
	if d.Allocated != nil && d.Holders == nil {
		return []api.Pod{*d.Allocated}
	}
	return d.Holders
}

// holder returns the names of the pods or claims that hold a device, or "-".
func holder(d api.Device) string {
	var names []string
	for _, p := range podsOf(d) {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	for _, c := range d.Claims {
		names = append(names, "claim "+c.String())
	}
	switch {
	case names != nil || !d.Held:
		return firstOf(names)
	case d.State == "released", d.State == "free", d.State == "unproven", d.State == "clearing": // see [api.Device.Held]
		return "metalplug"
	}
	return "a pod"
}

// formatDuration formats a duration in whole seconds, or in whole minutes if it is at least one hour.
func formatDuration(d time.Duration) string {
	if d >= time.Hour {
		return d.Truncate(time.Minute).String()
	}
	return d.Truncate(time.Second).String()
}

// eventLine returns a line with the number of udev events and the time of the last one. If an operator has plugged in hardware
// since then, events from udevd are not reaching metalplugd.
func eventLine(e api.Counts, now time.Time) string {
	last := "none yet"
	if !e.LastEvent.IsZero() {
		last = "last " + formatDuration(now.Sub(e.LastEvent)) + " ago"
	}
	return fmt.Sprintf("%d (%s), %d overflows, %d resyncs", e.Events, last, e.Overflows, e.Resyncs)
}

// describeConfiguration returns a text that names the configuration files. If the last reload was refused, the text also
// contains the errors.
func describeConfiguration(c api.Configuration) string {
	text := cmp.Or(strings.Join(c.Files, ", "), "the defaults")
	if c.Problem != "" {
		text += "; the last reload was refused: " + c.Problem
	}
	return text
}

// firstOf returns the first name and the number of other names, or "-" if there are no names.
func firstOf(names []string) string {
	if len(names) < 2 {
		return cmp.Or(strings.Join(names, ""), "-")
	}
	return fmt.Sprintf("%s +%d", names[0], len(names)-1)
}

// numaNode formats the number of a NUMA node, or returns "-" for an unknown node, which is -1.
func numaNode(node int) string {
	if node < 0 {
		return "-"
	}
	return strconv.Itoa(node)
}
