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

// users returns the devices that have a node in /dev, or need it while it is missing.
func users(snapshot *inventory.Snapshot, node string) (all []*inventory.Status) {
	for d := range everyDevice(snapshot) {
		has := slices.ContainsFunc(d.Nodes, func(n device.Node) bool { return n.Host == node || n.Container == node })
		if has || strings.Contains(d.Reason, node+" is missing") {
			all = append(all, d)
		}
	}
	return all
}

// suspects returns the udev devices to which a node without a device may belong: those of its class that could not be
// identified, so that their nodes are not known.
func suspects(snapshot *inventory.Snapshot, devices []udev.Device, node string) []udev.Device {
	paths := make(map[string]bool)
	for d := range everyDevice(snapshot) {
		c := d.Device.Class
		paths[d.Device.SysPath] = d.Device.ID == "" && c != nil && c != &device.Generic &&
			slices.ContainsFunc(c.DevNodes, func(p string) bool { return udev.Glob(p, node) })
	}
	return slices.DeleteFunc(slices.Clone(devices), func(u udev.Device) bool { return !paths[u.SysPath] })
}

// oneFor leaves of an answer about a node that several devices share the first of them, and says so: what there is to say
// of the node is the same for all.
func oneFor(snapshot *inventory.Snapshot, a *Answer) {
	n := len(users(snapshot, a.What))
	if n < 2 || len(a.Found) == 0 || !strings.HasPrefix(a.What, "/dev/") {
		return
	}
	a.Found = a.Found[:1]
	a.Found[0].Steps = slices.Insert(a.Found[0].Steps, 0, Step{
		What: "node", OK: true, Why: fmt.Sprintf("%d devices share %s; this is one of them", n, a.What),
	})
}
