// SPDX-License-Identifier: Apache-2.0

package device

// What is seen of a group of nodes: its identity, offer, health and recipe, which are those of its members together.

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// lookGroup finds out about a group from one of its members. Only the first of them stands for it.
func lookGroup(h *Host, rules []Rule, r *Rule, owner string, u *udev.Device, t *trace) Sighting {
	t.rule("rule", r.Resource, r, nil, func() string { return "it is a member of a group" })
	members, taken := ownMembers(h, rules, r, owner)
	id := groupID(h, r, owner)
	d := &Device{Class: &Generic, SysPath: u.SysPath, NUMANode: -1, Udev: u}
	if len(members) == 0 || members[0].SysPath != u.SysPath {
		err := fmt.Errorf("%w of %s", ErrPart, id)
		t.offer(nil, err, err)
		return Sighting{Device: d, Offer: err, Steps: t.told()}
	}
	for _, m := range members {
		if err := groupable(h, m); err != nil {
			t.offer(nil, err, err)
			return Sighting{Device: d, Offer: err, Steps: t.told()}
		}
	}
	d.ID, d.Model, d.NUMANode = id, groupModel(h, owner), commonNUMANode(h, members)
	s := Sighting{Device: d, Resource: r.Resource, NeedsAll: true, Instance: h.Instance(d.SysPath)}
	offer := joined(groupOffer(h, members), r.Group.missing(members, taken))
	s.Offer = r.forgive(offer)
	t.offer(r, offer, s.Offer)
	s.Health = groupHealth(h, members)
	for _, m := range members {
		s.Functions = append(s.Functions, nodeFunctions(h, Device{SysPath: m.SysPath, Udev: &m})...)
	}
	slices.Sort(s.Functions)
	s.Functions = slices.Compact(s.Functions)
	pciHealth(h, s.Functions, &s)
	t.health(&s)
	allocation, err := groupAllocate(h, *u, members)
	t.nodes(allocation, err)
	if s.Offer == nil {
		s.Offer = err
	}
	s.Allocation = allocation
	s.warn(reloadWarning(h, allocation))
	s.Steps = t.told()
	return s
}

// ownMembers finds the nodes of a group, and those that match it but that another class looks after or that belong to the
// group of an earlier rule: to what.
func ownMembers(h *Host, rules []Rule, r *Rule, owner string) (members []udev.Device, taken map[string]string) {
	taken = make(map[string]string)
	for _, m := range r.Group.members(h, owner) {
		first, _ := groupRule(h, rules, m, nil)
		switch class := selecting(m, nil); {
		case class != nil:
			taken[m.DevNode] = "class " + class.Name
		case first != nil && first != r:
			taken[m.DevNode] = first.Resource
		default:
			members = append(members, m)
		}
	}
	return members, taken
}

// groupable keeps back a node that may not be handed out at all, or through which a disk is reached: what udev has found
// on that is known of the disk by itself only.
func groupable(h *Host, m udev.Device) error {
	if err := barred(m); err != nil {
		return err
	}
	if len(disksBehind(h, m)) > 0 {
		return excludedf("%s is in the group and reaches a disk: offer it by itself", m.DevNode)
	}
	return nil
}

// groupID makes the ID of a group. It begins with the resource, since another one may have a group of the same
// hardware.
func groupID(h *Host, r *Rule, owner string) string {
	parts := []string{"group", strings.ReplaceAll(r.Resource, "/", ":")}
	switch r.Group.By {
	case GroupUSB:
		parts = append(parts, usbIdentity(h, owner)...)
	case GroupPCI:
		parts = append(parts, path.Base(owner))
	}
	return MakeID(parts...)
}

// usbIdentity returns vendor and product of a USB device and its serial number, or else the controller and the ports
// that it is at.
func usbIdentity(h *Host, sysPath string) []string {
	if serial, err := h.Attr(sysPath, "serial"); err == nil && serial != "" {
		vendor, _ := h.Attr(sysPath, "idVendor") // without them the serial number has to do
		product, _ := h.Attr(sysPath, "idProduct")
		return []string{vendor + ":" + product, serial}
	}
	ports, err := h.Attr(sysPath, "devpath")
	if err != nil {
		return []string{"usb", path.Base(sysPath)}
	}
	controller := sysPath
	for !sysfs.Numbered(path.Base(controller), "usb") && controller != "/" { // the root hub, directly below its controller
		controller = path.Dir(controller)
	}
	return []string{path.Base(path.Dir(controller)), "usb", ports}
}

// groupModel returns what a USB device says of itself.
func groupModel(h *Host, owner string) string {
	if owner == "" {
		return ""
	}
	model, err := h.Attr(owner, "product")
	if err != nil {
		return ""
	}
	return model
}

// commonNUMANode returns the NUMA node of all members that have one; -1: none has, or they differ.
func commonNUMANode(h *Host, members []udev.Device) int {
	node := -1
	for _, m := range members {
		switch own := nodeNUMA(h, m); {
		case own < 0:
		case node >= 0 && own != node:
			return -1
		default:
			node = own
		}
	}
	return node
}

func groupOffer(h *Host, members []udev.Device) error {
	var reasons []error
	for _, m := range members {
		reasons = append(reasons, nodeOffer(h, Device{SysPath: m.SysPath, Udev: &m}))
	}
	return joined(reasons...)
}

func groupHealth(h *Host, members []udev.Device) error {
	var reasons []error
	for _, m := range members {
		reasons = append(reasons, nodeHealth(h, Device{SysPath: m.SysPath, Udev: &m}))
	}
	return joined(reasons...)
}

// groupAllocate finds all nodes. A companion that several members need is there once.
func groupAllocate(h *Host, leader udev.Device, members []udev.Device) (Allocation, error) {
	var a Allocation
	for i, m := range members {
		if i == 0 {
			m = leader // of which udev's links are known
		} else {
			m.Properties = m.Properties.With("DEVLINKS", strings.Join(linksBeside(h, m.DevNode), " "))
		}
		own, err := nodeAllocate(h, Device{SysPath: m.SysPath, Udev: &m})
		if err != nil {
			return Allocation{}, err
		}
		for _, n := range own.Nodes {
			if !slices.Contains(a.Nodes, n) {
				a.Nodes = append(a.Nodes, n)
			}
		}
	}
	return a, nil
}

// linksBeside lists the links in the directories where udev's rules put those to nodes of that kind, wherever they
// lead: /dev/v4l/by-id for /dev/video0.
func linksBeside(h *Host, node string) []string {
	directories := map[string]string{"video": "v4l", "v4l-subdev": "v4l", "ttyUSB": "serial", "ttyACM": "serial"}
	kind := strings.TrimRight(path.Base(node), "0123456789")
	directory := "/dev/" + directories[kind]
	if directories[kind] == "" {
		directory = path.Dir(node) // /dev/snd, /dev/input, /dev/dri
	}
	var links []string
	for _, by := range []string{"by-id", "by-path"} {
		for _, name := range h.Names(directory + "/" + by) {
			links = append(links, directory+"/"+by+"/"+name)
		}
	}
	return links
}
