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

// claims reports whether hardware that claims an ID is what the inventory knows as d: by that ID, or by one to which its
// place was added since another has it.
func claims(id string, d *inventory.Status) bool { return strings.HasPrefix(d.Device.ID, id) }

// known finds what is asked for among what the inventory knows: by ID, also that of a share, by serial number, PCI address
// or name of the kernel, or all that have a node or need it while it is missing.
func (q *question) known() (all []*inventory.Status) {
	id := q.what
	if at := strings.LastIndex(id, "::"); at > 0 && q.snapshot.Find(id) == nil {
		id = id[:at]
	}
	if s := q.snapshot.Find(id); s != nil {
		return []*inventory.Status{s}
	}
	for d := range everyDevice(q.snapshot) {
		has := slices.ContainsFunc(d.Nodes, func(n device.Node) bool { return n.Host == q.what || n.Container == q.what })
		at := path.Base(device.FunctionIn(d.Device.SysPath))
		has = has || q.what == serialOf(d.Target) || q.what == path.Base(d.Device.SysPath) || q.address() == at
		if has || strings.Contains(d.Reason, q.what+" is missing") {
			all = append(all, d)
		}
	}
	return all
}

// candidates returns the udev devices that are asked for: that of a known device, else those of a node, a path in sysfs, a
// PCI address or a name of the kernel. A node without any may belong to a device of its class that could not be identified.
func (q *question) candidates(known *inventory.Status) []udev.Device {
	sysPath, address := q.sysPath(), q.address()
	found := q.those(func(u *udev.Device) bool {
		if known != nil {
			return u.SysPath == known.Device.SysPath
		}
		return u.SysPath == sysPath || u.DevNode == q.what || path.Base(u.SysPath) == q.what ||
			u.Subsystem == "pci" && path.Base(u.SysPath) == address || slices.Contains(strings.Fields(u.Properties.Value("DEVLINKS")), q.what)
	})
	if len(found) > 0 {
		return found
	}
	nameless := make(map[string]bool)
	for d := range everyDevice(q.snapshot) {
		c := d.Device.Class
		nameless[d.Device.SysPath] = d.Device.ID == "" && c != nil && c != &device.Generic &&
			slices.ContainsFunc(c.DevNodes, func(p string) bool { return udev.Glob(p, q.what) })
	}
	return q.those(func(u *udev.Device) bool { return nameless[u.SysPath] })
}

// address returns what is asked for as the address of a PCI function in sysfs, with the domain that people leave out.
func (q *question) address() string {
	name := strings.ToLower(q.what)
	if strings.Count(name, ":") == 1 {
		return "0000:" + name
	}
	return name
}

// those returns some of the udev devices.
func (q *question) those(is func(*udev.Device) bool) (found []udev.Device) {
	for i := range q.devices {
		if is(&q.devices[i]) {
			found = append(found, q.devices[i])
		}
	}
	return found
}

// sysPath returns the path below /sys/devices that is asked for, also as udev writes it; empty: it is not a path in sysfs.
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

// explain explains the candidates. One that stands for no device is explained by the nearest that does: above it, as
// the GPU above a render node, else those below it, as the namespaces of a controller, else those of the same PCI function,
// such as the RDMA device to which a node belongs.
func (q *question) explain(candidates []udev.Device) (all []device.Sighting) {
	for _, u := range candidates {
		own := device.Explain(q.Host, q.rules, u)
		if own[0].Device.Class == nil {
			own = q.near(u.SysPath, own)
		}
		all = append(all, own...)
	}
	return all
}

// near explains what stands for something next to a path; none is for nothing.
func (q *question) near(sysPath string, none []device.Sighting) []device.Sighting {
	subjects := func(is func(at string) bool) (found []device.Sighting) {
		for _, u := range q.those(func(u *udev.Device) bool { return is(u.SysPath) }) {
			if e := device.Explain(q.Host, q.rules, u); e[0].Device.Class != nil {
				found = append(found, e...)
			}
		}
		return found
	}
	for above := path.Dir(sysPath); above != "/"; above = path.Dir(above) {
		if found := subjects(func(at string) bool { return at == above }); len(found) > 0 {
			return found
		}
	}
	for _, top := range []string{sysPath, device.FunctionIn(sysPath)} {
		if found := subjects(func(at string) bool { return top != "" && strings.HasPrefix(at, top+"/") }); len(found) > 0 {
			return found
		}
	}
	return none
}
