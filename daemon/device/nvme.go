// SPDX-License-Identifier: Apache-2.0

package device

// NVMe namespaces on PCI Express, as block devices.
//
// Follows: drivers/nvme/host/sysfs.c, core.c and multipath.c; Documentation/admin-guide/nvme-multipath.rst;
// 60-persistent-storage.rules of udev.
//
// Identity: the attribute wwid, which is the UUID, NGUID or EUI-64 that the namespace itself reports. A namespace without one
// has vendor, serial number, model and namespace ID instead. Nothing else is stable. The numbers in nvme0n1 are the order in
// which controllers and namespaces were found, and the second is not the namespace ID.
//
// Health: a controller that reaches it is live, and what pci_health.go says of the controllers' functions. With native
// multipathing one good path is enough.
//
// Nodes: /dev/nvmeXnY, on the host by the link that udev makes from the wwid. Where a rule asks for it, /dev/ngXnY, by the
// link that our own rule makes (udev/60-metalplug.rules). Never a partition, because since Linux 6.2 a process that can open
// one reads all of the namespace (nvme_user_cmd checks without the partition flag). Never /dev/nvmeX. A container gets a
// whole controller by its VFIO group, which is class node.
//
// Zones: a host-managed zoned namespace is a disk that refuses most writes (Documentation/ABI/stable/sysfs-block,
// queue/zoned). It is held back unless the rule asks for ATTR{queue/zoned}.
//
// With native multipathing a namespace that several controllers could reach is a disk without a PCI parent, below its
// subsystem. Its paths are hidden disks without a node, whose udev devices are never a subject.
//
// Reset: that of the controller, 0.1 s, where this is its only namespace. I/O of all its namespaces waits for it. The
// resource says how to erase. See daemon/reset.
//
// Needs: sysfs, /proc/swaps, the mountinfo of process 1. No ioctl, no capability, no node is opened.

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

// NVMe is the class of NVMe namespaces that are empty and unused. Each namespace is a device.
var NVMe = Class{
	Name:  "nvme",
	Doc:   "NVMe namespaces that are empty and unused",
	Match: []udev.Match{{Subsystem: "block", DevType: "disk", Properties: map[string]string{"DEVNAME": "/dev/nvme*n*"}}},
	Wakes: []udev.Match{
		// With multipathing the controller, which reports its state, is not above the disk.
		{Subsystem: "nvme"},
		{Subsystem: "nvme-subsystem"},
		{Subsystem: "nvme-generic"}, // which comes after the disk, beside it
		onTop,
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
		return nil, incompletef("its wwid is empty")
	}
	d := Device{ID: nvmeID(wwid), NUMANode: -1}
	if controllers := h.NVMeControllers(u.SysPath); len(controllers) > 0 {
		d.Model, d.NUMANode = nvmeModel(h, controllers[0]), h.NUMANode(controllers[0])
	}
	return []Device{d}, nil
}

// nvmeID makes an ID of a wwid (wwid_show). A namespace without an identifier of its own has its serial number in it, decoded
// as people know it. The model is left out, because the serial number is enough.
func nvmeID(wwid string) string {
	fallback, ok := strings.CutPrefix(wwid, "nvme.")
	fields := strings.Split(fallback, "-") // vendor, serial number, model, namespace ID
	if !ok || len(fields) != 4 {
		return MakeID("nvme", wwid)
	}
	serial, err := hex.DecodeString(fields[1])
	if err != nil {
		return MakeID("nvme", wwid)
	}
	namespace, err := strconv.ParseUint(fields[3], 16, 32)
	if err != nil {
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
		return incompletef("its size is 0") // being formatted, or given up by the driver (nvme_mark_namespaces_dead)
	}
	// All reasons are reported, because a rule that overrules one does not overrule the others.
	return joined(inUse(h, *d.Udev), nvmeReach(h, d), nvmeWritable(h, d))
}

// nvmeWritable keeps back a namespace that is read-only, and one that is written zone by zone, unless the rule asks for one.
func nvmeWritable(h *Host, d Device) error {
	if h.Uint(d.SysPath, "ro") != 0 {
		return excludedf("it is read-only")
	}
	const attr = "queue/zoned"
	if d.rule != nil && d.rule.Match["ATTR{"+attr+"}"] != "" {
		return nil
	}
	if zoned, err := h.Attr(d.SysPath, attr); err == nil && zoned == "host-managed" {
		return excludedf("it is zoned: match ATTR{%s} to have it", attr)
	}
	return nil
}

// nvmeReach keeps back a namespace over a network, which other hosts may be using.
func nvmeReach(h *Host, d Device) error {
	for _, controller := range h.NVMeControllers(d.SysPath) {
		transport, err := h.Attr(controller, "transport")
		if err != nil {
			return incompletef("how its controller is reached is not known: %w", err)
		}
		if transport != "pcie" {
			return excludedf("controller %s is reached by %s", path.Base(controller), transport)
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
		return errors.New("no controller reaches it")
	}
	return joined(reasons...)
}

// Values of [Rule].Nodes, the nodes by which a container reaches a namespace.
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
		// There are two links by model and serial number. The longer one has the namespace ID too, and leads to no other
		// disk.
		slices.SortStableFunc(links, func(a, b string) int { return len(b) - len(a) })
		r.add(d.Udev.DevNode, slices.Insert(links, 0, "/dev/disk/by-id/nvme-"+wwid)...)
	}
	if nodes == NVMeGeneric || nodes == NVMeBoth {
		r.addGeneric(d.SysPath, nvmeGenericLink+wwid)
	}
}

// nvmeGenericLink is the beginning of the link to a generic node that our rule for udev makes. The wwid follows.
const nvmeGenericLink = "/dev/nvme-generic/by-id/nvme-"

// addGeneric adds the character node. Its name alone is not enough. The kubelet keeps it with the pod, and after a reboot it
// may be the name of another disk.
func (r *recipe) addGeneric(sysPath, link string) {
	node := r.DevNode(r.NVMeGeneric(sysPath))
	if node == "" {
		r.fail(incompletef("its generic node is missing"))
		return
	}
	r.add(node, link)
	if r.err == nil && r.Nodes[len(r.Nodes)-1].Host != link {
		r.fail(incompletef("%s has no link %s: udev's rule 60-metalplug.rules makes it", node, link))
	}
}
