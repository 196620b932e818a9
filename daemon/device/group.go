// SPDX-License-Identifier: Apache-2.0

package device

// This file handles sets of device nodes that are offered as one device.
//
// Follows Documentation/ABI/stable/sysfs-dev (/sys/dev/char and /sys/dev/block) and Documentation/ABI/stable/sysfs-bus-usb.
//
// The inspection of any member finds all members in sysfs, so an event for any member leads to the same group. The first member
// represents the group. The other members are parts of the group, and are not offered individually.

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
	GroupUSB = "usb" // each USB device has its own group
	GroupPCI = "pci" // each PCI function has its own group
)

// Group is a set of device nodes that are offered as one device. The patterns have the syntax of [udev.Glob] and match names such
// as "/dev/snd/controlC0". By selects the kind of hardware to which the rule's fields Match and Exclude apply. Match and Exclude
// can use only properties that the kernel reports for this hardware. If By is empty, Match and Exclude are empty too.
type Group struct {
	Nodes    []string // if one of these patterns matches no node, the device is incomplete
	Optional []string // nodes that match these patterns also belong to the device
	By       string   // [GroupUSB] or [GroupPCI], or empty for one group with nodes from the whole machine
}

// matches reports whether one of the patterns matches a node.
func (g *Group) matches(node string) bool { return node != "" && g.rank(node) >= 0 }

// rank returns the index of the first pattern that matches a node, or -1. The indexes of the optional patterns follow those of
// the required ones.
func (g *Group) rank(node string) int {
	return slices.IndexFunc(slices.Concat(g.Nodes, g.Optional), func(pattern string) bool { return udev.Glob(pattern, node) })
}

// checkComplete returns an [ErrIncomplete] error that names the required patterns without a matching member, or nil. The map
// "taken" contains the nodes of other devices, with their owners.
func (g *Group) checkComplete(members []udev.Device, taken map[string]string) error {
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
	return joinErrors(reasons...)
}

// ownerOf returns the sysfs path of the USB device or PCI function that has the node at sysPath. If By is empty, the result
// owner is "", which stands for the whole machine. The result ok is false if the node cannot belong to a group.
func (g *Group) ownerOf(h *Host, sysPath string) (owner string, ok bool) {
	switch g.By {
	case GroupUSB:
		owner = usbParent(h, sysPath)
	case GroupPCI:
		owner = FunctionIn(sysPath)
	default:
		return "", true
	}
	return owner, owner != ""
}

// usbParent returns the sysfs path of the USB device at or above sysPath, or "".
func usbParent(h *Host, sysPath string) string {
	for p := range sysfs.Up(sysPath) {
		if h.Link(p, "subsystem") == "usb" && h.Properties(p)["DEVTYPE"] == "usb_device" {
			return p
		}
	}
	return ""
}

// members returns a group's nodes, in the order of the patterns. The parameter owner is the group's hardware, or empty for the
// whole machine.
func (g *Group) members(h *Host, owner string) []udev.Device {
	var members []udev.Device
	for _, kind := range []string{"/sys/dev/char", "/sys/dev/block"} {
		for _, number := range h.Names(kind) {
			target, err := os.Readlink(h.Path(kind + "/" + number)) // "../../devices/…"
			sysPath := path.Join(kind, target)
			if err != nil || owner != "" && !strings.HasPrefix(sysPath+"/", owner+"/") {
				continue
			}
			if name := h.Properties(sysPath)["DEVNAME"]; name == "" || !g.matches("/dev/"+name) {
				continue
			}
			if of, ok := g.ownerOf(h, sysPath); ok && of == owner {
				member, _ := udev.ReadKernel(h.Sys, sysPath) // if the device no longer exists, only its path is set
				members = append(members, member)
			}
		}
	}
	slices.SortFunc(members, func(a, b udev.Device) int {
		return cmp.Or(g.rank(a.DevNode)-g.rank(b.DevNode), byNumber(a.DevNode, b.DevNode))
	})
	return members
}

// nodeRule returns the rule of class node that u belongs to, or nil. A rule whose group contains u comes first. The result owner
// is then the group's hardware. If no group contains u, nodeRule returns the first rule that takes u as a separate device. The
// result tries contains the rules that were tried. A member of a group is never a separate device, because two containers could
// then get the same node.
func nodeRule(h *Host, rules []Rule, u udev.Device) (r *Rule, owner string, tries []decision) {
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
			return r, owner, append(tries, decision{rule: r})
		}
		tries = append(tries, decision{r, errNoMember})
	}
	r, alone := tryRules(h, rules, Device{Class: &Generic, SysPath: u.SysPath, Udev: &u})
	return r, "", append(tries, alone...)
}

// errNoMember means that a udev device is not in a rule's group.
var errNoMember = errors.New("not a member of its group")

// groupOf reports whether u belongs to one of the rule's groups and returns the group's hardware. Hardware that has only optional
// nodes does not form a group.
func (r *Rule) groupOf(h *Host, u udev.Device) (owner string, ok bool) {
	g := r.Group
	if !g.matches(u.DevNode) {
		return "", false
	}
	if owner, ok = g.ownerOf(h, u.SysPath); !ok || owner == "" {
		return "", ok
	}
	hardware, _ := udev.ReadKernel(h.Sys, owner)
	if r.checkMatch(h, Device{SysPath: owner, Udev: &hardware}) != nil {
		return "", false
	}
	if g.rank(u.DevNode) >= len(g.Nodes) {
		members := g.members(h, owner)
		return owner, len(members) > 0 && g.rank(members[0].DevNode) < len(g.Nodes)
	}
	return owner, true
}

// groupNodes contains a group's nodes.
type groupNodes struct {
	all     []udev.Device // in the order of the patterns; the first one represents the group
	missing error         // the error that names the missing nodes, or nil
}

// identifyGroup identifies the group whose first member is u. An error means that u is not the first member, or that a member
// must not be offered or gives access to a disk. A group cannot contain disks, because udev reports a disk's content only for the
// disk's own node.
func identifyGroup(h *Host, rules []Rule, r *Rule, owner string, u *udev.Device) ([]Device, error) {
	all, taken := ownMembers(h, rules, r, owner)
	id := groupID(h, r, owner)
	if len(all) == 0 || all[0].SysPath != u.SysPath {
		return nil, fmt.Errorf("%w of %s", ErrPart, id)
	}
	for i, m := range all {
		if err := checkForbidden(m); err != nil {
			return nil, err
		}
		if len(disksBehind(h, m)) > 0 {
			return nil, excludedf("%s is in the group and gives access to a disk: offer the disk separately", m.DevNode)
		}
		all[i].Properties = m.Properties.With("DEVLINKS", strings.Join(listLinks(h, m.DevNode), " "))
	}
	all[0] = *u // unlike the other members, u has its udev links
	model := ""
	if owner != "" {
		model, _ = h.Attr(owner, "product") // only USB devices have this attribute
	}
	return []Device{{
		ID: id, Model: model,
		group: &groupNodes{all, r.Group.checkComplete(all, taken)},
	}}, nil
}

// ownMembers returns a group's nodes. The map "taken" contains the matching nodes that belong to another class, or to the group
// of an earlier rule, with their owners.
func ownMembers(h *Host, rules []Rule, r *Rule, owner string) (members []udev.Device, taken map[string]string) {
	taken = make(map[string]string)
	for _, m := range r.Group.members(h, owner) {
		switch first, _, _ := nodeRule(h, rules, m); {
		case ClassOf(m) != nil:
			taken[m.DevNode] = "class " + ClassOf(m).Name
		case first != nil && first != r:
			taken[m.DevNode] = first.Resource
		default:
			members = append(members, m)
		}
	}
	return members, taken
}

// groupID returns a group's ID. The ID contains the resource name, because several resources may have a group on the same
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

// usbIdentity returns the vendor, product and serial number of a USB device. If the device has no serial number, usbIdentity
// returns the controller and the ports that the device is connected to.
func usbIdentity(h *Host, sysPath string) []string {
	if serial, err := h.Attr(sysPath, "serial"); err == nil && serial != "" {
		vendor, _ := h.Attr(sysPath, "idVendor") // without vendor and product, the serial number must be sufficient
		product, _ := h.Attr(sysPath, "idProduct")
		return []string{vendor + ":" + product, serial}
	}
	ports, err := h.Attr(sysPath, "devpath")
	if err != nil {
		return []string{"usb", path.Base(sysPath)}
	}
	controller := sysPath
	for !sysfs.IsNumbered(path.Base(controller), "usb") && controller != "/" { // the root hub is directly below its controller
		controller = path.Dir(controller)
	}
	return []string{path.Base(path.Dir(controller)), "usb", ports}
}

// listLinks returns all links in the directories in which udev may have created a link to the given node. For example, the
// links to /dev/video0 are below /dev/v4l, and the links to /dev/ttyUSB0 are below /dev/serial. The result also includes the
// links to other nodes in these directories.
func listLinks(h *Host, node string) []string {
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
