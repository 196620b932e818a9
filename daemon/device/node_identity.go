// SPDX-License-Identifier: Apache-2.0

package device

// This file derives the identity of a device of class node.
//
// Follows udev's builtins usb_id and path_id, drivers/hid/hid-core.c (hid_uevent) and drivers/dma/idxd/cdev.c.
//
// The serial number stays the same when the device moves to another port. The path through the buses belongs to the port. The
// node's name is sufficient for nodes without hardware. For other nodes, the name is the last resort. All of a device's nodes
// have the same serial number and path. The ID of each such node therefore includes a part that distinguishes this node from the
// others.

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// nodeID derives an ID from the most reliable known identity.
func nodeID(h *Host, u udev.Device) string {
	if functions := vfioFunctions(h, u); len(functions) > 0 {
		return MakeID("node", u.Subsystem, path.Base(functions[0])) // the group's number depends on the order of discovery
	}
	p := u.Properties
	identity := cmp.Or(p.Value("DM_UUID"), p.Value("MD_UUID"))
	// Without ID_SERIAL_SHORT, ID_SERIAL is only the name of the model.
	if serial := p.Value("ID_SERIAL"); serial != "" && p.Value("ID_SERIAL_SHORT") != "" {
		identity = serial
	}
	if identity != "" {
		return nodeIDOf(h, u, identity)
	}
	if hid := hidIdentity(h, u); hid != nil {
		return MakeID(append([]string{"node"}, hid...)...)
	}
	if p.Value("ID_PATH") != "" {
		return nodeIDOf(h, u, p.Value("ID_PATH"))
	}
	if pci := pciIdentity(h, u); pci != nil {
		return MakeID(append([]string{"node"}, pci...)...)
	}
	return MakeID("node", strings.ReplaceAll(strings.TrimPrefix(u.DevNode, "/dev/"), "/", "-"))
}

// nodeIDOf returns a node's ID. The ID consists of the device's identity and a part that distinguishes the node from the device's
// other nodes.
func nodeIDOf(h *Host, u udev.Device, identity string) string {
	parts := []string{"node", identity}
	if number := u.Properties.Value("ID_USB_INTERFACE_NUM"); number != "" {
		parts = append(parts, "if"+number)
	}
	if member := nodeMember(h, u); member != "" {
		parts = append(parts, member)
	}
	return MakeID(parts...)
}

// nodeMember returns a text that distinguishes a node from the same device's other nodes. The text contains a number if a device
// can have several nodes of this kind, such as the partitions of a disk, the ports of a serial adapter or the nodes of a camera.
// For other nodes, the text is the kind's name, or empty.
func nodeMember(h *Host, u udev.Device) string {
	switch u.Subsystem {
	case "block":
		if number, err := h.Attr(u.SysPath, "partition"); err == nil {
			return "part" + number
		}
		return ""
	case "tty":
		// The parent device of a USB serial port has the attribute port_number (port_number_show).
		if port, err := h.Attr(path.Dir(path.Dir(u.SysPath)), "port_number"); err == nil && port != "0" {
			return "port" + port
		}
		return ""
	case "usb":
		return ""
	}
	kind := strings.TrimRight(path.Base(u.DevNode), "0123456789")
	if index, err := h.Attr(u.SysPath, "index"); err == nil { // video4linux has this attribute
		kind += "-index" + index
	}
	return kind
}

// hidParent returns the sysfs path of a hidraw node's HID device, or "" for other nodes.
func hidParent(u udev.Device) string {
	if u.Subsystem != "hidraw" {
		return ""
	}
	return path.Dir(path.Dir(u.SysPath))
}

// hidIdentity returns the identity of a hidraw node's HID device, or nil. Most versions of udev provide no identity for HID
// devices, because they have no rule for them. The identity consists of the bus, vendor, product, serial number or port, and
// interface.
func hidIdentity(h *Host, u udev.Device) []string {
	above := hidParent(u)
	if above == "" {
		return nil
	}
	p := h.Properties(above)
	port, input := path.Split(p["HID_PHYS"]) // "usb-0000:00:14.0-4/input1"
	serial := p["HID_UNIQ"]
	if serial == "" {
		serial = strings.TrimSuffix(port, "/")
	}
	if serial == "" {
		return nil
	}
	identity := []string{"hid"}
	for number := range strings.SplitSeq(strings.ToLower(p["HID_ID"]), ":") { // bus, vendor, product: "0003:00001050:00000407"
		identity = append(identity, strings.TrimPrefix(number, "0000"))
	}
	identity = append(identity, serial)
	if input != "" {
		identity = append(identity, input)
	}
	return identity
}

// pciIdentity returns the address of the PCI function directly above u, and the index of u among the function's devices of the
// same kind. pciIdentity returns nil if there is no such function. The number in the name of u is not used, because it depends on
// the order in which the kernel found the devices of all functions.
func pciIdentity(h *Host, u udev.Device) []string {
	if queue := queueOf(u); queue != "" {
		_, number, _ := strings.Cut(path.Base(queue), ".") // in "wq0.1", the 0 depends on the order of discovery
		return []string{path.Base(path.Dir(u.DevNode)), pciAddress(u.SysPath), "wq" + number}
	}
	function := FunctionIn(u.SysPath)
	directory := path.Dir(u.SysPath)
	if function == "" || path.Dir(directory) != function {
		return nil
	}
	kind := strings.TrimRight(path.Base(u.SysPath), "0123456789")
	identity := []string{path.Base(function), kind}
	siblings := h.Numbered(directory, kind)
	slices.SortFunc(siblings, byNumber)
	if i := slices.Index(siblings, path.Base(u.SysPath)); i > 0 {
		identity = append(identity, strconv.Itoa(i))
	}
	return identity
}

// byNumber compares two names of the same kind by their final number, so that "ttyS9" precedes "ttyS10".
func byNumber(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }
