// SPDX-License-Identifier: Apache-2.0

package device

// This file handles NVMe namespaces on PCI Express, which are offered as block devices.
//
// Follows: drivers/nvme/host/sysfs.c, core.c and multipath.c; Documentation/admin-guide/nvme-multipath.rst;
// 60-persistent-storage.rules of udev.
//
// Identity: the attribute wwid, which is the UUID, NGUID or EUI-64 that the namespace reports. If the namespace reports none of
// them, the wwid consists of the vendor, serial number, model and namespace ID. A namespace's name is not stable. The numbers in
// a name such as nvme0n1 depend on the order in which controllers and namespaces were found. The second number is not the
// namespace ID.
//
// Health: one of the namespace's controllers must be live, and the checks in pci.go must succeed for the controller's PCI
// function. With native multipathing, one working path is enough.
//
// Nodes: a container gets /dev/nvmeXnY. The path on the host is the link that udev derives from the wwid. A rule can also request
// /dev/ngXnY, for which metalplug's udev rule creates the link (udev/60-metalplug.rules). Partitions are never offered. Since
// Linux 6.2, a process that can open a partition can read the whole namespace (nvme_user_cmd checks without the partition flag).
// A container never gets /dev/nvmeX. To give a container a whole controller, use class node and offer the controller's VFIO
// group.
//
// Zones: a host-managed zoned namespace is a disk that rejects most writes (Documentation/ABI/stable/sysfs-block, queue/zoned).
// metalplug offers it only if the rule matches ATTR{queue/zoned}.
//
// With native multipathing, several controllers may reach a namespace. The namespace is then a disk below its subsystem, and has
// no PCI parent. The paths to this disk are hidden disks, which have no node and are never subjects.
//
// Reset: metalplug resets a namespace's controller if it has no other namespace. The reset takes 0.1 s. During this time, I/O to
// the namespace waits. The resource configuration selects the erase method. See daemon/reset.
//
// Needs: sysfs, /proc/swaps, and the mountinfo of process 1. The class needs no ioctl or capability, and does not open
// device nodes.

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// NVMe is the class of NVMe namespaces that are blank and unused. Each namespace is a device.
var NVMe = Class{
	Name:  NVMeName,
	Doc:   "NVMe namespaces",
	Match: []udev.Match{{Subsystem: "block", DevType: "disk", Properties: map[string]string{"DEVNAME": "/dev/nvme*n*"}}},
	Wakes: []udev.Match{
		// The controllers report the state, but with multipathing they are not above the disk in sysfs.
		{Subsystem: "nvme"},
		{Subsystem: "nvme-subsystem"},
		{Subsystem: "nvme-generic"}, // in sysfs, this device is a sibling of the disk and appears after it
		stackedDevices,
	},
	Disks:    true,
	Every:    slowCheck,
	DevNodes: []string{"/dev/nvme[0-9]*n[0-9]*", "/dev/ng[0-9]*n[0-9]*"},
	Identify: nvmeIdentify,
	Offer:    nvmeOffer,
	Health:   nvmeHealth,
	Allocate: nvmeAllocate,
	Target:   nvmeTarget,
}

func nvmeIdentify(h *Host, u udev.Device) ([]Device, error) {
	wwid, err := h.Attr(u.SysPath, "wwid")
	if err != nil {
		return nil, err
	}
	if wwid == "" {
		return nil, incompletef("the wwid of the disk is empty")
	}
	d := Device{ID: nvmeID(wwid)}
	if generic := h.NVMeGeneric(u.SysPath); generic != "" {
		d.Generic, _ = h.Attr(generic, "dev")
	}
	if controllers := h.NVMeControllers(u.SysPath); len(controllers) > 0 {
		d.Model = nvmeModel(h, controllers[0])
	}
	return []Device{d}, nil
}

// nvmeID makes an ID from a wwid (wwid_show). If the namespace reports no identifier, the wwid contains the serial number in
// hexadecimal form, which nvmeID decodes. The ID omits the model, because the serial number is enough.
func nvmeID(wwid string) string {
	fallback, ok := strings.CutPrefix(wwid, "nvme.")
	fields := strings.Split(fallback, "-") // vendor, serial number, model, namespace ID
	if !ok || len(fields) != 4 {
		return MakeID("nvme", wwid)
	}
	serial, serialErr := hex.DecodeString(fields[1])
	namespace, namespaceErr := strconv.ParseUint(fields[3], 16, 32)
	if serialErr != nil || namespaceErr != nil {
		return MakeID("nvme", wwid)
	}
	return MakeID("nvme", fields[0], strings.TrimSpace(string(serial)), strconv.FormatUint(namespace, 10))
}

func nvmeModel(h *Host, controller string) string {
	model, _ := h.Attr(controller, "model")
	if firmware, _ := h.Attr(controller, "firmware_rev"); model != "" && firmware != "" {
		model += ", firmware " + firmware
	}
	return model
}

func nvmeOffer(h *Host, d Device) error {
	if size, err := h.Int(d.SysPath, "size"); err == nil && size == 0 {
		// The disk is being formatted, or the driver has disabled the drive (nvme_mark_namespaces_dead).
		return incompletef("the size of the disk is 0")
	}
	// Report all reasons, because a rule may overrule only one of them.
	return joinErrors(inUse(h, *d.Udev), nvmeReach(h, d), nvmeWritable(h, d))
}

// nvmeWritable returns an error for a read-only namespace, and for a zoned namespace that the rule does not request.
func nvmeWritable(h *Host, d Device) error {
	if h.Uint(d.SysPath, "ro") != 0 {
		return excludedf("the disk is read-only")
	}
	const attr = "queue/zoned"
	if d.rule != nil && d.rule.Match["ATTR{"+attr+"}"] != "" {
		return nil
	}
	if zoned, err := h.Attr(d.SysPath, attr); err == nil && zoned == "host-managed" {
		return excludedf("the disk is zoned: to offer the disk, match ATTR{%s}", attr)
	}
	return nil
}

// nvmeReach returns an error for a namespace on a network, because other hosts may use it.
func nvmeReach(h *Host, d Device) error {
	for _, controller := range h.NVMeControllers(d.SysPath) {
		transport, err := h.Attr(controller, "transport")
		if err != nil {
			return incompletef("the transport of the controller is unknown: %w", err)
		}
		if transport != "pcie" {
			return excludedf("controller %s is connected by %s", path.Base(controller), transport)
		}
	}
	return nil
}

func nvmeHealth(h *Host, d Device) error {
	var reasons []error
	for _, controller := range h.NVMeControllers(d.SysPath) {
		state, err := h.Attr(controller, "state")
		switch {
		case err != nil:
			reasons = append(reasons, err)
		case state == "live":
			return nil
		default:
			reasons = append(reasons, fmt.Errorf("controller %s is %s", path.Base(controller), state))
		}
	}
	if len(reasons) == 0 {
		return errors.New("no controller reaches the namespace")
	}
	return joinErrors(reasons...)
}

// Values of [Rule].Nodes, which select the nodes of a namespace for a container.
const (
	NVMeBlock   = "block"   // /dev/nvmeXnY, a block device
	NVMeGeneric = "generic" // /dev/ngXnY, a character device for passthrough commands
	NVMeBoth    = "both"
)

func nvmeAllocate(r *recipe, d Device) {
	nodes := ""
	if d.rule != nil {
		nodes = d.rule.Nodes
	}
	wwid, err := r.Attr(d.SysPath, "wwid")
	if err != nil {
		r.fail(err)
		return
	}
	if nodes != NVMeGeneric {
		links := linksIn(*d.Udev, "by-id")
		// Two links contain the model and serial number. The longer link also contains the namespace ID, so it never points to
		// another disk.
		slices.SortStableFunc(links, func(a, b string) int { return len(b) - len(a) })
		r.add(d.Udev.DevNode, slices.Insert(links, 0, "/dev/disk/by-id/nvme-"+wwid)...)
	}
	if nodes == NVMeGeneric || nodes == NVMeBoth {
		r.addGeneric(d.SysPath, nvmeGenericLink+wwid)
	}
}

// nvmeGenericLink is the beginning of the link that metalplug's udev rule creates for a generic node. The wwid follows.
const nvmeGenericLink = "/dev/nvme-generic/by-id/nvme-"

// addGeneric adds the generic node of a namespace, which is a character device. The path must be a link, because the kubelet
// stores it with the pod, and the kernel's name may belong to another disk after a reboot.
func (r *recipe) addGeneric(sysPath, link string) {
	node := r.DevNode(r.NVMeGeneric(sysPath))
	if node == "" {
		r.fail(incompletef("the generic node of the disk is missing"))
		return
	}
	r.add(node, link)
	if r.err == nil && r.Nodes[len(r.Nodes)-1].Host != link {
		r.fail(incompletef("%s has no link %s: udev's rule 60-metalplug.rules creates it", node, link))
	}
}
