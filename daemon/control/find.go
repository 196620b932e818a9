// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/udev"
)

// minBeginning is the minimum length of a text that is compared with the beginnings of IDs. A shorter text is probably a
// typing error.
const minBeginning = 4

// findKnown returns the devices in the inventory that the name in the question refers to. The name may be a device or share ID, a
// serial number, a PCI address, a device node or a kernel name. For the name of a missing device node, the result contains all
// devices that need this node. Any other name is compared with the beginnings of IDs.
func (q *question) findKnown() (all []*inventory.Status) {
	id := q.what
	if at := strings.LastIndex(id, "::"); at > 0 && q.snapshot.Find(id) == nil {
		id = id[:at]
	}
	if s := q.snapshot.Find(id); s != nil {
		return []*inventory.Status{s}
	}
	var begun []*inventory.Status
	for d := range q.snapshot.All() {
		if d.Members != nil { // the only name of a bundle is its ID
			continue
		}
		names := []string{serialOf(d.Target), path.Base(d.Device.SysPath)}
		for _, n := range d.Nodes {
			names = append(names, n.Host, n.Container, strings.TrimPrefix(n.Container, "/dev/"))
		}
		if slices.Contains(names, q.what) || path.Base(device.FunctionIn(d.Device.SysPath)) == q.address() ||
			strings.Contains(d.Reason, q.what+" is missing") {
			all = append(all, d)
		}
		if len(id) >= minBeginning && strings.HasPrefix(d.Device.ID, id) {
			begun = append(begun, d)
		}
	}
	if all == nil {
		return begun
	}
	return all
}

// serials lists the udev properties that identify a piece of hardware. The partitions of a disk have the same properties
// as the disk.
var serials = []string{"ID_SERIAL", "ID_SERIAL_SHORT", "ID_WWN"}

// explainCandidates explains the udev devices that the name in the question refers to. If the inventory contains the device,
// explainCandidates uses the udev device with the same path in sysfs. Otherwise, explainCandidates searches for a node, a sysfs
// path, a PCI address, a serial number or a kernel name. If the search finds nothing, explainCandidates explains the devices
// without an ID whose class has nodes with a name of that form.
func (q *question) explainCandidates(known *inventory.Status) []device.Explained {
	sysPath, address := q.sysPath(), q.address()
	found := q.explain(true, func(u *udev.Device) bool {
		if known != nil {
			return u.SysPath == known.Device.SysPath
		}
		return u.SysPath == sysPath || u.DevNode == q.what || path.Base(u.SysPath) == q.what ||
			u.Subsystem == "pci" && path.Base(u.SysPath) == address || slices.Contains(strings.Fields(u.Properties.Value("DEVLINKS")), q.what) ||
			u.Properties.Value("DEVTYPE") != "partition" && slices.ContainsFunc(serials, func(key string) bool { return u.Properties.Value(key) == q.what })
	})
	if len(found) > 0 {
		return found
	}
	nameless := make(map[string]bool)
	for d := range q.snapshot.All() {
		c := d.Device.Class
		nameless[d.Device.SysPath] = d.Device.ID == "" && c != nil && c != &device.Generic && udev.Glob(strings.Join(c.DevNodes, "|"), q.what)
	}
	return q.explain(true, func(u *udev.Device) bool { return nameless[u.SysPath] })
}

// address returns the requested name in the form that sysfs uses for PCI addresses, and adds a missing domain.
func (q *question) address() string {
	name := strings.ToLower(q.what)
	if strings.Count(name, ":") == 1 {
		return "0000:" + name
	}
	return name
}

// sysPath returns the requested name as a path below /sys/devices. sysPath also accepts a path in udev's form, without "/sys".
// sysPath returns "" for any other name.
func (q *question) sysPath() string {
	what := q.what
	if strings.HasPrefix(what, "/devices/") {
		what = "/sys" + what
	}
	if !strings.HasPrefix(what, "/sys/") {
		return ""
	}
	return cmp.Or(q.Host.Resolve(path.Clean(what)), path.Clean(what))
}

// explain returns the explanations for all udev devices for which the given function returns true. explain omits devices without
// a class. If the parameter "near" is true, explain replaces an omitted device with the nearest device that has a class.
func (q *question) explain(near bool, is func(*udev.Device) bool) (all []device.Explained) {
	for i := range q.devices {
		if !is(&q.devices[i]) {
			continue
		}
		own := device.Explain(q.Host, q.rules, q.devices[i])
		if own[0].Device.Class != nil {
			all = append(all, own...)
		} else if near {
			all = append(all, q.explainNearest(q.devices[i].SysPath, own)...)
		}
	}
	return all
}

// explainNearest explains the device that is nearest to a path. explainNearest first tries a parent, such as the GPU to which a
// render node belongs. Next, it tries a child, such as a controller's namespace. Finally, it tries a device on the same PCI
// function, such as the RDMA device that belongs to a device node. If there is no such device, the result is the parameter
// "none".
func (q *question) explainNearest(sysPath string, none []device.Explained) []device.Explained {
	for above := path.Dir(sysPath); above != "/"; above = path.Dir(above) {
		if found := q.explain(false, func(u *udev.Device) bool { return u.SysPath == above }); len(found) > 0 {
			return found
		}
	}
	for _, top := range []string{sysPath, device.FunctionIn(sysPath)} {
		below := q.explain(false, func(u *udev.Device) bool { return top != "" && strings.HasPrefix(u.SysPath, top+"/") })
		if len(below) > 0 {
			return below
		}
	}
	return none
}
