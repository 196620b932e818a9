// SPDX-License-Identifier: Apache-2.0

package device

// Any other device with a node, where a rule asks for it: serial adapters, cameras, /dev/kvm, VFIO groups, disks.
//
// Follows: Documentation/admin-guide/devices.rst; udev(7); the rules 60-serial, 60-persistent-storage and
// 60-persistent-v4l of udev; Documentation/driver-api/vfio.rst.
//
// Identity: what udev found out: the serial number, which goes with the device from port to port; else the path through
// the buses, which stays with the port; else the name of the node, which is right for those that are no hardware
// (/dev/kvm, /dev/net/tun). Several nodes of one device have these in common, so that what tells them apart is added.
//
// Health: the node is there, and what pci_health.go says of the function that it is below or, for a VFIO group, that is in
// the group.
//
// Nodes: its own, on the host by a link that udev makes from the identity; /dev/vfio/vfio for a VFIO group.
//
// Needs: udev's database; for disks what block.go needs. No ioctl, no capability, no node is opened.

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// Generic is the class of any device with a node. It has no match of its own: its subjects are what its rules take.
var Generic = Class{
	Name:      "node",
	Doc:       "any other device node, by rule (serial adapters, cameras, kvm, VFIO groups, disks)",
	Wakes:     []udev.Match{onTop},
	Disks:     true,
	DevNodes:  []string{"/dev/*"},
	Identify:  nodeIdentify,
	Offer:     nodeOffer,
	Health:    nodeHealth,
	Functions: nodeFunctions,
	Allocate:  nodeAllocate,
}

func nodeIdentify(h *Host, u udev.Device) ([]Device, error) {
	if u.DevNode == "" {
		return nil, errors.New("it has no device node")
	}
	if err := barred(u); err != nil {
		return nil, err
	}
	d := Device{ID: nodeID(h, u), Model: nodeModel(u), NUMANode: h.NUMANode(u.SysPath)}
	if function := vfioFunction(h, u); function != "" {
		d.ID, d.NUMANode = MakeID("node", "vfio", path.Base(function)), h.NUMANode(function)
	}
	return []Device{d}, nil
}

// barred keeps back nodes through which a container would reach more than it was given, disks that this host uses among
// it, whatever a rule says.
func barred(u udev.Device) error {
	name := path.Base(u.SysPath)
	switch {
	case u.DevType == "partition" && strings.HasPrefix(name, "nvme"):
		return excludedf("the node of an NVMe partition reaches the whole namespace (NVME_IOCTL_IO_CMD)")
	case u.Subsystem == "nvme", u.Subsystem == "nvme-generic":
		return excludedf("%s reaches namespaces past every check: offer those with class nvme", u.DevNode)
	case u.Subsystem == "platform" && strings.HasPrefix(name, "dfl-fme"):
		return excludedf("%s programs the whole card: offer its ports with class fpga", u.DevNode)
	}
	return nil
}

// nodeID takes the strongest identity that udev's rules have found.
func nodeID(h *Host, u udev.Device) string {
	p := u.Properties
	switch {
	case p["ID_SERIAL"] != "" && p["ID_SERIAL_SHORT"] != "": // without the latter it is only the name of the model
		return nodeIDOf(h, u, p["ID_SERIAL"])
	case p["DM_UUID"] != "":
		return nodeIDOf(h, u, p["DM_UUID"])
	case p["MD_UUID"] != "":
		return nodeIDOf(h, u, p["MD_UUID"])
	case p["ID_PATH"] != "":
		return nodeIDOf(h, u, p["ID_PATH"])
	}
	return MakeID("node", strings.ReplaceAll(strings.TrimPrefix(u.DevNode, "/dev/"), "/", "-"))
}

// nodeIDOf adds to the identity of a device what tells this node of it from the others.
func nodeIDOf(h *Host, u udev.Device, identity string) string {
	parts := []string{"node", identity}
	if number := u.Properties["ID_USB_INTERFACE_NUM"]; number != "" {
		parts = append(parts, "if"+number)
	}
	if member := nodeMember(h, u); member != "" {
		parts = append(parts, member)
	}
	return MakeID(parts...)
}

// nodeMember tells the nodes of one piece of hardware apart: by number where they are of one kind, as partitions, the
// ports of a serial adapter and the nodes of a camera, else by kind.
func nodeMember(h *Host, u udev.Device) string {
	switch u.Subsystem {
	case "block":
		if number, err := h.Attr(u.SysPath, "partition"); err == nil {
			return "part" + number
		}
		return ""
	case "tty":
		// Of the usb-serial device that the terminal belongs to (port_number_show).
		if port, err := h.Attr(path.Dir(path.Dir(u.SysPath)), "port_number"); err == nil && port != "0" {
			return "port" + port
		}
		return ""
	case "usb":
		return ""
	}
	kind := strings.TrimRight(path.Base(u.DevNode), "0123456789")
	if index, err := h.Attr(u.SysPath, "index"); err == nil { // of video4linux
		kind += "-index" + index
	}
	return kind
}

func nodeModel(u udev.Device) string {
	for _, key := range []string{"ID_MODEL_FROM_DATABASE", "ID_MODEL", "DM_NAME"} {
		if model := u.Properties[key]; model != "" {
			return strings.ReplaceAll(model, "_", " ")
		}
	}
	return ""
}

// vfioFunction returns the sysfs path of the first PCI function in a VFIO group, of which the number, that of the IOMMU
// group, is the order of discovery. Empty: u is no VFIO group.
func vfioFunction(h *Host, u udev.Device) string {
	if u.Subsystem != "vfio" {
		return ""
	}
	members := "/sys/kernel/iommu_groups/" + path.Base(u.DevNode) + "/devices"
	for _, name := range h.Names(members) {
		return h.Resolve(members + "/" + name)
	}
	return ""
}

func nodeOffer(h *Host, d Device) error {
	var reasons []error
	for _, disk := range disksBehind(h, d.Udev) {
		reasons = append(reasons, inUse(h, disk))
	}
	if d.Udev.DevType == "partition" {
		reasons = append(reasons, excludedf("a partition: name it by DEVNAME if it is meant"))
	}
	return joined(reasons...)
}

// disksBehind returns the block devices whose content a node reaches: itself, or the disk that a SCSI generic node is
// another way to.
func disksBehind(h *Host, u udev.Device) []udev.Device {
	switch u.Subsystem {
	case "block":
		return []udev.Device{u}
	case "scsi_generic", "bsg":
		var disks []udev.Device
		directory := h.Resolve(u.SysPath+"/device") + "/block"
		for _, name := range h.Names(directory) {
			disks = append(disks, udev.Device{Subsystem: "block", DevType: "disk", SysPath: directory + "/" + name})
		}
		return disks
	}
	return nil
}

func nodeHealth(h *Host, d Device) error {
	if !h.Present(d.Udev.DevNode) {
		return fmt.Errorf("%s is missing", d.Udev.DevNode)
	}
	return nil
}

func nodeFunctions(h *Host, d Device) []string {
	function := vfioFunction(h, d.Udev)
	if function == "" {
		function = h.PCIParent(d.SysPath)
	}
	if function == "" {
		return nil
	}
	return []string{function}
}

func nodeAllocate(h *Host, d Device) (Allocation, error) {
	var a Allocation
	if err := a.add(h, d.Udev.DevNode, linksIn(d.Udev, "by-id", "by-path")...); err != nil {
		return Allocation{}, err
	}
	if d.Udev.Subsystem == "vfio" {
		if err := a.add(h, "/dev/vfio/vfio"); err != nil { // the container, to which a process adds its groups
			return Allocation{}, err
		}
	}
	return a, nil
}
