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

// standing is a resource on one line.
func standing(r api.Resource) string {
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
	switch {
	case r.ByClaim():
		return text + "; served by DRA"
	case r.Held != "":
		return text + "; held back"
	case r.Connected:
		return text + "; kubelet connected"
	case r.Registered:
		return text + "; registered, the kubelet has opened no stream"
	}
	return text + "; kubelet not connected"
}

// healthCell is the health of a device as an operator sees it. A cordoned device is not a sick one.
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

// cordonedBy tells in brackets by whom and when a device was cordoned. It is empty if it is not cordoned, or that is not known.
func cordonedBy(c *api.Cordon) string {
	if c == nil || c.Since.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (by %s, %s)", c.By(), c.Since.UTC().Format(api.TimeFormat))
}

// reasonOf is why a device is not healthy or not offered, and of a cordon by whom.
func reasonOf(d api.Device) string { return d.Reason + cordonedBy(d.Cordon) }

// podsOf returns the pods that hold a device, as far as they are known.
func podsOf(d api.Device) []api.Pod {
	if d.Allocated != nil && d.Holders == nil {
		return []api.Pod{*d.Allocated}
	}
	return d.Holders
}

// holder names who holds a device.
func holder(d api.Device) string {
	var names []string
	for _, p := range podsOf(d) {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	if names == nil && d.Held {
		return "a pod"
	}
	return firstOf(names)
}

// age is a duration as people say it, to the second, or to the minute from an hour on.
func age(d time.Duration) string {
	if d >= time.Hour {
		return d.Truncate(time.Minute).String()
	}
	return d.Truncate(time.Second).String()
}

// eventLine tells how many events came and when the last one did: on a machine whose hardware changed since, an old one
// says that events do not arrive.
func eventLine(e api.EventCounts, now time.Time) string {
	last := "none yet"
	if !e.LastEvent.IsZero() {
		last = "last " + age(now.Sub(e.LastEvent)) + " ago"
	}
	return fmt.Sprintf("%d (%s), %d overflows, %d resyncs", e.Events, last, e.Overflows, e.Resyncs)
}

// configured is where the configuration is from, and what is wrong with the one that was to replace it.
func configured(c api.Configuration) string {
	text := cmp.Or(strings.Join(c.Files, ", "), "the defaults")
	if c.Problem != "" {
		text += "; the last reload was refused: " + c.Problem
	}
	return text
}

// firstOf names the first of several and how many more there are, or "-" where there is none.
func firstOf(names []string) string {
	switch len(names) {
	case 0:
		return "-"
	case 1:
		return names[0]
	}
	return fmt.Sprintf("%s +%d", names[0], len(names)-1)
}

// numaNode is a NUMA node, or "-" where none is known, which is -1.
func numaNode(node int) string {
	if node < 0 {
		return "-"
	}
	return strconv.Itoa(node)
}
