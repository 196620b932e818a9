// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// takeGroup reads the keys group, optional and group_by.
func takeGroup(t *table, r *Resource) {
	var g device.Group
	t.nodes("group", &g.Nodes)
	t.nodes("optional", &g.Optional)
	if t.value("group_by") != "" {
		t.choice("group_by", "kind of hardware", &g.By, device.GroupUSB, device.GroupPCI)
	}
	if len(g.Nodes) > 0 {
		r.Group = &g
		checkGroup(t, *r)
		return
	}
	if len(g.Optional) > 0 {
		t.reportf("optional", `needs a group; write group = ["/dev/video*"] too`)
	}
	if g.By != "" {
		t.reportf("group_by", `needs a group; write group = ["/dev/video*"] too`)
	}
}

// checkGroup reports a group's invalid settings.
func checkGroup(t *table, r Resource) {
	t.onlyFor("group", r.Class, device.NodeName)
	for _, node := range r.Group.Optional {
		if slices.Contains(r.Group.Nodes, node) {
			t.reportf("optional", "%s is already in the group; remove it here", quote(node))
		}
	}
	checkHardwareOnly(t, "match", r.Match, r.Group.By)
	checkHardwareOnly(t, "exclude", r.Exclude, r.Group.By)
}

// checkHardwareOnly reports conditions in the tables match and exclude that are invalid for a group. Conditions on the nodes
// belong in the key group. Conditions on the hardware are compared only with properties from the kernel, because a process in a
// sandbox may not see all of udev's database.
func checkHardwareOnly(t *table, key string, patterns map[string]string, by string) {
	for _, property := range slices.Sorted(maps.Keys(patterns)) {
		switch {
		case by == "":
			t.reportBelowf(key, property, `describes the hardware of a group; write group_by = "usb" or "pci" too`)
		case strings.HasPrefix(property, "ID_"), property == "DEVLINKS", property == "TAGS":
			t.reportBelowf(key, property, "is set by udev's rules; match a group by a property that the kernel reports for its hardware, "+
				"such as ATTR{serial} or PCI_ID")
		}
	}
}

// checkNodePattern accepts patterns that can match a device node.
func checkNodePattern(pattern string) error {
	name, ok := strings.CutPrefix(pattern, "/dev/")
	if !ok || !filepath.IsLocal(name) || strings.ContainsAny(name, "|\x00") {
		return fmt.Errorf(`%s is not a device node`, quote(pattern))
	}
	return checkPattern(pattern)
}

// nodes reads an array of device node patterns.
func (t *table) nodes(key string, to *[]string) {
	for _, node := range t.texts(key, "an array of device nodes") {
		if slices.Contains(*to, node) {
			t.reportf(key, "has %s twice; remove one", quote(node))
			continue
		}
		t.check(key, checkNodePattern(node))
		*to = append(*to, node)
	}
}
