// SPDX-License-Identifier: Apache-2.0

package device

// This file handles class node. metalplug offers a device of this class only if a rule selects the device. A rule can select any
// device that has a node and does not belong to another class, such as a serial adapter, a camera, /dev/kvm, a VFIO group, a DSA
// or IAA work queue, or a disk. group.go handles sets of nodes that form one device.
//
// Follows: Documentation/admin-guide/devices.rst; udev(7); udev's rules 60-serial, 60-persistent-storage and
// 60-persistent-v4l; Documentation/driver-api/vfio.rst; Documentation/ABI/stable/sysfs-driver-dma-idxd.
//
// Identity: the serial number, which stays the same when the device moves to another port. A device without a serial number is
// identified by its path through the buses, which belongs to the port. A device without such a path is identified by its node's
// name, which is sufficient for nodes without hardware (/dev/kvm, /dev/net/tun). udev or the kernel provides these values. See
// node_identity.go.
//
// Health: the node must exist, and the checks in pci.go must succeed for the PCI function above it. A VFIO group is
// unhealthy if one of its functions is unhealthy.
//
// Nodes: a container gets the device's own node. The path on the host is a link that udev derives from the identity. A VFIO group
// also needs /dev/vfio/vfio, and a VFIO device without a group needs /dev/iommu.
//
// Reset: metalplug resets each function in a VFIO group, which takes 0.1 s per function. A disk cannot be reset, but metalplug
// can erase it. See daemon/reset.
//
// Needs: udev's database and, for disks, the files that block.go needs. The class needs no ioctl or capability, and does
// not open device nodes.

import (
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// Generic is the class for any device that has a device node. Other classes select their devices with the field Match, but the
// devices of this class are selected by the configured rules.
var Generic = Class{
	Name: NodeName,
	Doc:  "any other device node, by rule (serial adapters, cameras, kvm, VFIO groups, disks)",
	// In sysfs, the PCI functions in a VFIO group are not parents of the group, so Wakes must select their events. A process can
	// open the group only if every function in it has a suitable driver.
	Wakes:    []udev.Match{stackedDevices, {Subsystem: "pci"}},
	Disks:    true,
	DevNodes: []string{"/dev/*"},
	Identify: nodeIdentify,
	Offer:    nodeOffer,
	Health:   nodeHealth,
	NeedsAll: true,
	Allocate: nodeAllocate,
	Target:   nodeTarget,
}

func nodeIdentify(h *Host, u udev.Device) ([]Device, error) {
	if err := checkForbidden(u); err != nil {
		return nil, err
	}
	return []Device{{ID: nodeID(h, u), Model: nodeModel(h, u)}}, nil
}

// checkForbidden returns an error if a node gives access to more than the device itself, for example to a disk that this host
// uses. Rules cannot overrule this error.
func checkForbidden(u udev.Device) error {
	name := path.Base(u.SysPath)
	switch {
	case u.DevType == "partition" && strings.HasPrefix(name, "nvme"):
		return excludedf("the node of an NVMe partition reaches the whole namespace (NVME_IOCTL_IO_CMD)")
	case u.Subsystem == "usb" && strings.Contains(u.Properties.Value("ID_USB_INTERFACES"), ":08"): // the class of mass storage
		return excludedf("%s bypasses the checks of its disk: offer the disk itself", u.DevNode)
	case u.Subsystem == "nvme", u.Subsystem == "nvme-generic":
		return excludedf("%s bypasses the namespace checks: offer the namespaces with class nvme", u.DevNode)
	case strings.Contains(u.SysPath, "/devices/platform/amdgpu_xcp"):
		return excludedf("%s is a partition of a GPU: offer it with class gpu", u.DevNode)
	case u.Subsystem == "platform" && strings.HasPrefix(name, "dfl-fme"):
		return excludedf("%s programs the whole card: offer its ports with class fpga", u.DevNode)
	}
	return nil
}

func nodeModel(h *Host, u udev.Device) string {
	for _, key := range []string{"ID_MODEL_FROM_DATABASE", "ID_MODEL", "DM_NAME"} {
		if model := u.Properties.Value(key); model != "" {
			return strings.ReplaceAll(model, "_", " ")
		}
	}
	if above := hidParent(u); above != "" {
		return h.Properties(above)["HID_NAME"]
	}
	return ""
}

func nodeOffer(h *Host, d Device) error {
	var reasons []error
	for _, u := range d.nodes() {
		reasons = append(reasons, diskOffer(h, d.rule, u), vfioViable(h, u), queueReady(h, u))
	}
	if d.group != nil {
		reasons = append(reasons, d.group.missing)
	}
	return joinErrors(reasons...)
}

// diskOffer checks the disks to which a node gives access. diskOffer returns the reason why the node must not be offered, or nil.
func diskOffer(h *Host, r *Rule, u udev.Device) error {
	var reasons []error
	for _, disk := range disksBehind(h, u) {
		whole := disk.SysPath == u.SysPath && u.DevType != "partition"
		switch {
		case r == nil, r.Scrub == "":
		case r.Scrub == ScrubUnset && whole:
			return excludedf("%s takes a disk and does not define what happens to a pod's data: add [resource.reset] with "+
				`scrub = "discard", "zero" or "none"; with "none" the disk is offered again only if the pod left it blank`, r.Resource)
		case r.Scrub == ScrubUnset:
			return excludedf("%s takes a node that reaches a disk and does not define what happens to a pod's data: match the disk "+
				`itself, or add [resource.reset] with scrub = "none"; with "none" the next pod can read the data`, r.Resource)
		case !whole:
			return excludedf("%s erases disks, and only a whole disk can be erased: match the disk itself, or set scrub = \"none\"", r.Resource)
		}
		if reasons = append(reasons, inUse(h, disk)); !whole { // metalplug-reset reads and locks only whole disks
			reasons = append(reasons, byNamef("%w: metalplug does not read this node: match the whole disk, or match this node by DEVNAME "+
				"and set allow_in_use = true", ErrUnproven))
		}
	}
	return joinErrors(reasons...)
}

// disksBehind returns the block devices whose content a process can access through a node. For a block device, the result is this
// device. For another SCSI node, the result is the node's disk, or all of its host's disks.
func disksBehind(h *Host, u udev.Device) []udev.Device {
	switch u.Subsystem {
	case "block":
		return []udev.Device{u}
	case "scsi_generic", "bsg":
		var disks []udev.Device
		for _, disk := range h.SCSIDisks(u.SysPath) {
			disks = append(disks, udev.Device{Subsystem: "block", DevType: "disk", SysPath: disk})
		}
		return disks
	}
	return nil
}

func nodeHealth(h *Host, d Device) error {
	var reasons []error
	for _, u := range d.nodes() {
		if !h.Present(u.DevNode) {
			reasons = append(reasons, fmt.Errorf("%s is missing", u.DevNode))
		}
	}
	return joinErrors(reasons...)
}

func nodeAllocate(r *recipe, d Device) {
	for _, u := range d.nodes() {
		r.add(u.DevNode, linksIn(u, "by-id", "by-path")...)
		if companion := vfioCompanions[u.Subsystem]; companion != "" {
			r.add(companion)
		}
	}
}
