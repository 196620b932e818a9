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

// claims tells whether hardware that claims an ID is what the inventory knows as d: by that ID, or by one to which its
// place was added since another has it.
func claims(id string, d *inventory.Status) bool { return strings.HasPrefix(d.Device.ID, id) }

// statusOf finds what is asked for among what the inventory knows: by ID, also that of a share, or by node.
func statusOf(snapshot *inventory.Snapshot, what string) *inventory.Status {
	if s := snapshot.Find(what); s != nil {
		return s
	}
	if at := strings.LastIndex(what, "::"); at > 0 {
		if s := snapshot.Find(what[:at]); s != nil {
			return s
		}
	}
	if all := users(snapshot, what); strings.HasPrefix(what, "/dev/") && len(all) > 0 {
		return all[0]
	}
	return nil
}

// candidates returns the udev devices that are asked for, or those which what is asked for is a part of.
func (s *Server) candidates(devices []udev.Device, what string, known *inventory.Status) []udev.Device {
	selects := func(u udev.Device) bool { return false }
	sysPath := s.sysPath(what)
	switch {
	case known != nil:
		selects = func(u udev.Device) bool { return u.SysPath == known.Device.SysPath }
	case strings.HasPrefix(what, "/dev/"):
		selects = func(u udev.Device) bool {
			return u.DevNode == what || slices.Contains(strings.Fields(u.Properties.Value("DEVLINKS")), what)
		}
	case sysPath != "":
		selects = func(u udev.Device) bool { return u.SysPath == sysPath }
	case device.FunctionIn("/"+address(what)) != "":
		name := address(what)
		selects = func(u udev.Device) bool { return u.Subsystem == "pci" && path.Base(u.SysPath) == name }
	}
	return slices.DeleteFunc(slices.Clone(devices), func(u udev.Device) bool { return !selects(u) })
}

// address returns the address of a PCI function as sysfs has it, with the domain that people leave out.
func address(what string) string {
	what = strings.ToLower(what)
	if strings.Count(what, ":") == 1 {
		return "0000:" + what
	}
	return what
}

// sysPath returns the path below /sys/devices that a path in sysfs stands for, also as udev writes it; empty: it is
// none.
func (s *Server) sysPath(what string) string {
	if strings.HasPrefix(what, "/devices/") {
		what = "/sys" + what
	}
	if !strings.HasPrefix(what, "/sys/") {
		return ""
	}
	if real := s.Host.Resolve(path.Clean(what)); real != "" {
		return real
	}
	return path.Clean(what)
}

// explain explains the candidates. One that stands for no device is explained by the nearest that does: above it, as
// the GPU above a render node, else those below it, as the namespaces of a controller.
func (s *Server) explain(devices, candidates []udev.Device) []device.Sighting {
	rules := s.Rules()
	var all []device.Sighting
	for _, u := range candidates {
		own := device.Explain(s.Host, rules, u)
		if own[0].Device.Class != nil {
			all = append(all, own...)
			continue
		}
		if near := s.near(devices, rules, u.SysPath); len(near) > 0 {
			own = near
		}
		all = append(all, own...)
	}
	return all
}

// near explains what stands for something next to a path: the nearest above it, else all below it, else all of the same
// PCI function, such as the RDMA device to which a node belongs.
func (s *Server) near(devices []udev.Device, rules []device.Rule, sysPath string) []device.Sighting {
	subjects := func(is func(at string) bool) (found []device.Sighting) {
		for _, u := range devices {
			if !is(u.SysPath) {
				continue
			}
			if e := device.Explain(s.Host, rules, u); e[0].Device.Class != nil {
				found = append(found, e...)
			}
		}
		return found
	}
	under := func(top string) func(string) bool {
		return func(at string) bool { return strings.HasPrefix(at, top+"/") }
	}
	if above := subjects(func(at string) bool { return under(at)(sysPath) }); len(above) > 0 {
		at := func(e device.Sighting) string { return e.Device.SysPath }
		nearest := slices.MaxFunc(above, func(a, b device.Sighting) int { return cmp.Compare(len(at(a)), len(at(b))) })
		return slices.DeleteFunc(above, func(e device.Sighting) bool { return at(e) != at(nearest) })
	}
	found := subjects(under(sysPath))
	if function := device.FunctionIn(sysPath); len(found) == 0 && function != "" {
		found = subjects(under(function))
	}
	return found
}
