// SPDX-License-Identifier: Apache-2.0

package device

// Sets of device nodes that are offered as one device.
//
// Follows Documentation/ABI/stable/sysfs-dev (/sys/dev/char and /sys/dev/block) and Documentation/ABI/stable/sysfs-bus-usb.
//
// The members are found in sysfs, so that each of them sees the same group, whichever of them an event was about. The first
// of them stands for the group. The others are seen and not offered, as parts of it.

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// Values of [Group].By.
const (
	GroupUSB = "usb" // each USB device has a group of its own
	GroupPCI = "pci" // each PCI function has
)

// Group is a set of device nodes that are offered as one device. The patterns are those of [udev.Glob], over names such as
// "/dev/snd/controlC0". The Match and Exclude of its rule are about the hardware that By names, of which only the kernel's
// properties are known. Without By they are empty.
type Group struct {
	Nodes    []string // each has to find a node, or the device is not complete
	Optional []string // each may find nodes, which belong to the device then
	By       string   // [GroupUSB] or [GroupPCI], or empty if the nodes of the whole machine are one group
}

// names reports whether any pattern is about a node.
func (g *Group) names(node string) bool { return node != "" && g.rank(node) >= 0 }

// rank returns the number of the first pattern that a node matches, or -1. The optional patterns come last.
func (g *Group) rank(node string) int {
	return slices.IndexFunc(slices.Concat(g.Nodes, g.Optional), func(pattern string) bool { return udev.Glob(pattern, node) })
}

// missing returns as [ErrIncomplete] which of the patterns that have to find a node have found none. taken has the owners of
// nodes that belong to something else.
func (g *Group) missing(members []udev.Device, taken map[string]string) error {
	var reasons []error
	for _, pattern := range g.Nodes {
		if slices.ContainsFunc(members, func(m udev.Device) bool { return udev.Glob(pattern, m.DevNode) }) {
			continue
		}
		reason := incompletef("%s is missing", pattern)
		for _, node := range slices.Sorted(maps.Keys(taken)) {
			if udev.Glob(pattern, node) {
				reason = incompletef("%s belongs to %s", node, taken[node])
			}
		}
		reasons = append(reasons, reason)
	}
	return joined(reasons...)
}

// hardware returns the sysfs path of the hardware that a node at sysPath is of, as the group divides it, or "". ok reports
// whether the node is in a group.
func (g *Group) hardware(h *Host, sysPath string) (owner string, ok bool) {
	switch g.By {
	case GroupUSB:
		owner = usbAbove(h, sysPath)
	case GroupPCI:
		owner = FunctionIn(sysPath)
	default:
		return "", true
	}
	return owner, owner != ""
}

// usbAbove returns the sysfs path of the USB device at or above sysPath, or "".
func usbAbove(h *Host, sysPath string) string {
	for p := range sysfs.Up(sysPath) {
		if h.Link(p, "subsystem") == "usb" && h.Properties(p)["DEVTYPE"] == "usb_device" {
			return p
		}
	}
	return ""
}

// members finds the nodes that belong to the same group as those of an owner, the first in the order of the patterns
// first.
func (g *Group) members(h *Host, owner string) []udev.Device {
	var members []udev.Device
	for _, kind := range []string{"/sys/dev/char", "/sys/dev/block"} {
		for _, number := range h.Names(kind) {
			target, err := os.Readlink(h.Path(kind + "/" + number)) // "../../devices/…"
			sysPath := path.Join(kind, target)
			if err != nil || owner != "" && !strings.HasPrefix(sysPath+"/", owner+"/") {
				continue
			}
			if name := h.Properties(sysPath)["DEVNAME"]; name == "" || !g.names("/dev/"+name) {
				continue
			}
			if of, ok := g.hardware(h, sysPath); ok && of == owner {
				member, _ := udev.ReadKernel(h.Sys, sysPath) // of one that vanishes only the path is known
				members = append(members, member)
			}
		}
	}
	slices.SortFunc(members, func(a, b udev.Device) int {
		return cmp.Or(g.rank(a.DevNode)-g.rank(b.DevNode), byNumber(a.DevNode, b.DevNode))
	})
	return members
}

// nodeRule returns the rule of class node that takes u, or nil, and the rules that were asked. The first rule with a group that
// u is a member of comes first, with the hardware of the group as owner. Otherwise it is the first rule that takes u as a device
// of its own. A member cannot be a device of its own, even where that rule comes first, because two containers would get it.
func nodeRule(h *Host, rules []Rule, u udev.Device) (r *Rule, owner string, tries []try) {
	if u.DevNode == "" {
		return nil, "", nil
	}
	for i := range rules {
		r := &rules[i]
		if r.Class != &Generic || r.Group == nil {
			continue
		}
		owner, ok := r.groupOf(h, u)
		if ok {
			return r, owner, append(tries, try{rule: r})
		}
		tries = append(tries, try{r, errNoMember})
	}
	r, alone := tryRules(h, rules, &Generic, matched{u, func() string { return nodeID(h, u) }, ""})
	return r, "", append(tries, alone...)
}

// errNoMember is why a rule with a group does not take a udev device.
var errNoMember = errors.New("no member of its group")

// groupOf reports whether u belongs to a group of the rule, and returns the hardware of the group. A piece of hardware that
// has only nodes which are optional has no group.
func (r *Rule) groupOf(h *Host, u udev.Device) (owner string, ok bool) {
	g := r.Group
	if !g.names(u.DevNode) {
		return "", false
	}
	if owner, ok = g.hardware(h, u.SysPath); !ok || owner == "" {
		return "", ok
	}
	hardware, _ := udev.ReadKernel(h.Sys, owner)
	if r.matches(h, matched{Device: hardware}) != nil {
		return "", false
	}
	if g.rank(u.DevNode) >= len(g.Nodes) {
		members := g.members(h, owner)
		return owner, len(members) > 0 && g.rank(members[0].DevNode) < len(g.Nodes)
	}
	return owner, true
}

// members are the nodes of a group.
type members struct {
	all     []udev.Device // the one that stands for the group is the first
	missing error         // which are not there
}

// identifyGroup finds a group by one of its members. Only the first of them stands for it. It keeps back a node that may not be
// handed out at all, or that reaches a disk. The content that udev found on a disk is known only of the node of the disk itself.
func identifyGroup(h *Host, rules []Rule, r *Rule, owner string, u *udev.Device) ([]Device, error) {
	all, taken := ownMembers(h, rules, r, owner)
	id := groupID(h, r, owner)
	if len(all) == 0 || all[0].SysPath != u.SysPath {
		return nil, fmt.Errorf("%w of %s", ErrPart, id)
	}
	for i, m := range all {
		if err := barred(m); err != nil {
			return nil, err
		}
		if len(disksBehind(h, m)) > 0 {
			return nil, excludedf("%s is in the group and reaches a disk: offer it by itself", m.DevNode)
		}
		all[i].Properties = m.Properties.With("DEVLINKS", strings.Join(linksBeside(h, m.DevNode), " "))
	}
	all[0] = *u // of which udev's links are known
	return []Device{{
		ID: id, Model: groupModel(h, owner), NUMANode: commonNUMANode(h, all), rule: r,
		group: &members{all, r.Group.missing(all, taken)},
	}}, nil
}

// ownMembers finds the nodes of a group. Nodes that match it but belong to another class or to the group of an earlier rule
// are in taken, with the name of that.
func ownMembers(h *Host, rules []Rule, r *Rule, owner string) (members []udev.Device, taken map[string]string) {
	taken = make(map[string]string)
	for _, m := range r.Group.members(h, owner) {
		switch first, _, _ := nodeRule(h, rules, m); {
		case selecting(m) != nil:
			taken[m.DevNode] = "class " + selecting(m).Name
		case first != nil && first != r:
			taken[m.DevNode] = first.Resource
		default:
			members = append(members, m)
		}
	}
	return members, taken
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
	model, _ := h.Attr(owner, "product")
	return model
}

// commonNUMANode returns the NUMA node of all members that have one, or -1 if none has one or they differ.
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

// linksBeside lists the links in the directories where udev's rules put those to nodes such as this one, beside it, and
// /dev/v4l for /dev/video0, /dev/serial for /dev/ttyUSB0. The links may lead to other nodes.
func linksBeside(h *Host, node string) []string {
	var links []string
	for _, by := range []string{"/by-id/", "/by-path/"} {
		for _, directory := range []string{path.Dir(node), "/dev/v4l", "/dev/serial"} {
			for _, name := range h.Names(directory + by) {
				links = append(links, directory+by+name)
			}
		}
	}
	return links
}
