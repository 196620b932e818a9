// SPDX-License-Identifier: Apache-2.0

package device

// What is seen of a group of nodes: its identity, offer, health and recipe, which are those of its members together.

import (
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// members are the nodes of a group.
type members struct {
	all     []udev.Device // the one that stands for the group is the first
	missing error         // which are not there
}

// identifyGroup finds a group by one of its members. Only the first of them stands for it.
func identifyGroup(h *Host, rules []Rule, r *Rule, owner string, u *udev.Device) ([]Device, error) {
	all, taken := ownMembers(h, rules, r, owner)
	id := groupID(h, r, owner)
	if len(all) == 0 || all[0].SysPath != u.SysPath {
		return nil, fmt.Errorf("%w of %s", ErrPart, id)
	}
	for i := range all {
		m := &all[i]
		if err := groupable(h, *m); err != nil {
			return nil, err
		}
		if i == 0 {
			*m = *u // of which udev's links are known
		} else {
			m.Properties = m.Properties.With("DEVLINKS", strings.Join(linksBeside(h, m.DevNode), " "))
		}
	}
	return []Device{{
		ID: id, Model: groupModel(h, owner), NUMANode: commonNUMANode(h, all), rule: r, group: &members{all, r.Group.missing(all, taken)},
	}}, nil
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
