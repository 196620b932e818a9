// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// Sighting is the result of inspecting one device.
type Sighting struct {
	Device     *Device    // if the hardware was not identified, the device has no ID
	Resource   string     // resource of the first matching rule, or empty
	Allocation Allocation // empty if the device cannot be given to a container
	Nodes      []Node     // the nodes that exist, even if Allocation is empty
	Target     *Target    // target at the time of the inspection, or nil if no helper can work on the device
	Offer      error      // reason why the device must not be offered, or nil
	Health     error      // reason why the device is unhealthy, or nil
	// Fingerprint identifies the disk's content. Fingerprint is empty if the disk was not read. Asked is the earlier fingerprint
	// that was sent to the probe.
	Fingerprint, Asked string
	Blank              bool      // the probe found no data on the disk
	Size               int64     // size of the disk in bytes, or 0 if unknown
	Written            uint64    // sectors written to the disk before the probe (see [sysfs.Written])
	Warning            string    // a problem with a usable device that the operator should handle
	Unread             bool      // no helper answered, so the disk's content and health are unknown
	Functions          []string  // sysfs paths of the PCI functions that lead to the device
	Counters           []Counter // error counters of the functions
	Instance           uint64    // number of the hardware in this boot (see [Host.Instance])
	// claimed means that a process or the kernel has the disk open exclusively. Until the disk is erased, this process may belong to
	// a pod. The pod may also have built another device on top of the disk.
	claimed   bool
	objection error // reason why the device must not be offered, before the rule's exceptions apply
}

// HostUse reports whether this host uses the disk, for example for a file system or as swap. A device on top of the disk counts
// too, unless a pod holds the disk and may have created this device.
func (s *Sighting) HostUse(held bool) bool {
	var use *sysfs.Use
	return s.claimed && !held || errors.As(s.Offer, &use) && use.Unread == nil && (use.ByHost || !held)
}

// Twin records that another device has the same identity. A disk with a twin is not offered, because two pods could otherwise
// share a medium over two paths. The result is true if this reason is new.
func (s *Sighting) Twin(other string) bool {
	if !s.Target.IsDisk() || errors.Is(s.Offer, ErrTwin) {
		return false
	}
	s.Offer = joinErrors(s.Offer, twinError(path.Base(other)))
	return true
}

// Inspect inspects one udev device. For each device in it, Inspect determines the resource, the health, the nodes for a
// container, and whether the device may be offered. Inspect reads sysfs, and may block until the kernel answers. Inspect returns
// nothing if the udev device is not a subject of any class. The sightings keep a reference to the parameter "seen", so the caller
// must not modify this parameter afterwards.
func Inspect(h *Host, rules []Rule, seen *udev.Device) []Sighting {
	found, ok := inspectUdev(h, rules, seen)
	if !ok {
		return nil
	}
	for i := range found {
		found[i].Device.group = nil // the group is needed only during the inspection
	}
	return found
}

// inspectUdev implements [Inspect]. The result ok is false if the udev device is not a subject of any class or no longer exists.
// If inspectUdev identifies no device, the Offer of the only sighting contains the reason.
func inspectUdev(h *Host, rules []Rule, u *udev.Device) (found []Sighting, ok bool) {
	class := ClassOf(*u)
	unidentified := func(err error) []Sighting {
		return []Sighting{{Device: &Device{Class: class, SysPath: u.SysPath, NUMANode: -1, Udev: u}, Offer: err}}
	}
	identify := func() ([]Device, error) { return class.Identify(h, *u) }
	var rule *Rule
	if class == nil {
		var owner string
		if rule, owner, _ = nodeRule(h, rules, *u); rule == nil {
			return unidentified(nil), false
		}
		class = &Generic
		if rule.Group != nil {
			identify = func() ([]Device, error) { return identifyGroup(h, rules, rule, owner, u) }
		}
	}
	if !h.Present(u.SysPath) {
		return unidentified(ErrGone), false
	}
	devices, err := identify()
	if err != nil {
		return unidentified(err), true
	}
	if len(devices) == 0 {
		return unidentified(errors.New("the hardware contains no device")), false
	}
	for _, d := range devices {
		d.Class, d.SysPath, d.Udev, d.rule = class, u.SysPath, u, rule
		hardware := hardwareOf(h, d)
		d.NUMANode = commonNUMANode(h, hardware)
		found = append(found, inspectDevice(h, rules, d, functionsOf(hardware)))
	}
	return found, true
}

// inspectDevice inspects one identified device. The given PCI functions lead to the device.
func inspectDevice(h *Host, rules []Rule, d Device, functions []string) Sighting {
	rule, err := d.rule, error(nil)
	if rule == nil {
		rule, err = ruleFor(h, rules, d)
		d.rule = rule
	}
	s := Sighting{Device: &d, Instance: h.Instance(d.SysPath)}
	if d.Class.Offer != nil {
		s.Offer = d.Class.Offer(h, d)
	}
	if d.Class == &Generic {
		for _, u := range d.nodes() {
			s.Offer = joinErrors(s.Offer, vfioDuplicate(h, rules, u), classDuplicate(h, rules, u))
		}
	}
	if err != nil {
		s.objection = s.Offer
		if OnlyInUse(s.Offer) { // not %w, because the inventory would ignore the error while a pod holds the disk
			err = fmt.Errorf("%v; %w", s.Offer, err)
		}
		if !isUnsuited(s.Offer) { // for an unsuited device, s.Offer is more informative
			s.Offer = err
		}
		found, _ := d.allocate(h) // the error is ignored, because a device that is not offered may lack nodes
		s.Nodes = found.Nodes
		return s
	}
	s.Resource = rule.Resource
	s.Health = d.Class.Health(h, d)
	if s.Functions = functions; len(functions) > 0 && FunctionIn(d.SysPath) == "" {
		d.firstFunction = functions[0]
	}
	pciHealth(h, &s)
	if d.Class.Warning != nil {
		s.warn(d.Class.Warning(h, d))
	}
	s.setTarget(h)
	if s.Target.IsDisk() {
		s.Written = sysfs.Written(&h.Tree, d.SysPath)
	}
	h.probe(&s, rule.AllowInUse)
	s.objection = s.Offer
	s.Offer = rule.overrule(s.Offer)
	s.Allocation, err = d.allocate(h)
	s.Nodes = s.Allocation.Nodes
	if err != nil {
		if s.Offer == nil || OnlyUnanswered(s.Offer) {
			s.Offer = err
		}
		s.Allocation = Allocation{}
	}
	s.warn(reloadWarning(h, s.Allocation))
	return s
}

// classDuplicate returns an error if u belongs to a device of another class, and a rule takes this device. Two pods could then get
// the same hardware. The subject of the other class is above u in sysfs, or in a directory "infiniband" beside u.
func classDuplicate(h *Host, rules []Rule, u udev.Device) error {
	if !OffersNode(u.DevNode) { // most nodes, so their inspection stays short
		return nil
	}
	for above := range sysfs.Up(u.SysPath) {
		for _, name := range append(h.Names(above+"/infiniband"), "..") {
			v, _ := udev.ReadKernel(h.Sys, path.Join(above, "infiniband", name)) // if there is an error, v is not a subject
			if ClassOf(v) == nil {
				continue
			}
			for _, s := range Inspect(h, rules, &v) {
				own := func(n Node) bool { return n.Container == u.DevNode && !n.Shared() }
				// NVIDIA's class does not offer its GPU's DRM nodes, but they also use the GPU.
				if s.Resource != "" && !isUnsuited(s.Offer) && (u.Subsystem == "drm" || slices.ContainsFunc(s.Nodes, own)) {
					return excludedf("%s offers the same hardware as %s", s.Resource, s.Device.ID)
				}
			}
		}
	}
	return nil
}

// OffersNode reports whether a class other than [Generic] gives nodes with such a name to containers. One example is the node
// rdma_cm, which all adapters share.
func OffersNode(name string) bool {
	return slices.ContainsFunc(Classes, func(c *Class) bool { return c != &Generic && udev.Glob(strings.Join(c.DevNodes, "|"), name) })
}

// functionsOf returns the sysfs paths of the PCI functions that lead to hardware.
func functionsOf(hardware []string) (functions []string) {
	for _, p := range hardware {
		if function := FunctionIn(p); function != "" && !slices.Contains(functions, function) {
			functions = append(functions, function)
		}
	}
	return functions
}

// hardwareOf returns the sysfs paths of the hardware that makes up a device. For a VFIO group, these are the devices in the
// group, sorted by address. For an NVMe namespace, they are its controllers. For any other device, the result is the device
// itself.
func hardwareOf(h *Host, d Device) (hardware []string) {
	for _, u := range d.nodes() {
		paths := append(vfioFunctions(h, u), h.NVMeControllers(u.SysPath)...)
		if len(paths) == 0 {
			paths = []string{u.SysPath}
		}
		hardware = append(hardware, paths...)
	}
	return hardware
}

// commonNUMANode returns the NUMA node of the hardware at the given paths, or -1 if it is unknown or differs between paths.
func commonNUMANode(h *Host, hardware []string) int {
	common := -1
	for _, p := range hardware {
		switch node := h.NUMANode(p); {
		case node < 0:
		case common >= 0 && node != common:
			return -1
		default:
			common = node
		}
	}
	return common
}

// ClassOf returns the class that has u as a subject, or nil. ClassOf never returns [Generic], because only rules select the
// subjects of that class.
func ClassOf(u udev.Device) *Class {
	if i := slices.IndexFunc(Classes, func(c *Class) bool { return anyMatch(c.Match, u) }); i >= 0 {
		return Classes[i]
	}
	return nil
}
