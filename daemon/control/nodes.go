// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/udev"
)

// has tells whether a node in /dev is one of a device's.
func has(d *inventory.Status, node string) bool {
	return slices.ContainsFunc(d.Nodes, func(n device.Node) bool { return n.Host == node || n.Container == node })
}

// misses tells whether a device would need a node in /dev that is not there.
func misses(d *inventory.Status, node string) bool {
	return strings.Contains(d.Reason, node+" is missing")
}

// suspects returns the udev devices of which a node may be that is none of any device's: those that miss it, or else those
// of its class that could not be identified, so that their nodes are not known.
func suspects(snapshot *inventory.Snapshot, devices []udev.Device, node string) []udev.Device {
	missing, unknown := make(map[string]bool), make(map[string]bool)
	for d := range everyDevice(snapshot) {
		c := d.Device.Class
		if c == nil || c == &device.Generic || !slices.ContainsFunc(c.DevNodes, func(p string) bool { return udev.Glob(p, node) }) {
			continue
		}
		switch {
		case misses(d, node):
			missing[d.Device.SysPath] = true
		case d.Device.ID == "":
			unknown[d.Device.SysPath] = true
		}
	}
	paths := unknown
	if len(missing) > 0 {
		paths = missing
	}
	return slices.DeleteFunc(slices.Clone(devices), func(u udev.Device) bool { return !paths[u.SysPath] })
}

// oneFor leaves of an answer about a node that several devices share the first of them, and says so: what there is to say
// of the node is the same for all.
func oneFor(snapshot *inventory.Snapshot, a *Answer) {
	n := 0
	for d := range everyDevice(snapshot) {
		if has(d, a.What) || misses(d, a.What) {
			n++
		}
	}
	if n < 2 || len(a.Found) == 0 || !strings.HasPrefix(a.What, "/dev/") {
		return
	}
	a.Found = a.Found[:1]
	a.Found[0].Steps = slices.Insert(a.Found[0].Steps, 0, Step{
		What: "node", OK: true, Why: fmt.Sprintf("%d devices share %s; this is one of them", n, a.What),
	})
}
