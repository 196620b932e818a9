// SPDX-License-Identifier: Apache-2.0

package sysfs

// This file finds all nodes that give access to a device.

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Node is a device node.
type Node struct {
	SysPath string
	Block   bool   // true for a block device, false for a character device
	Number  string // such as "259:0", or empty if the device has no number or is being removed
}

// Number returns a node's device number, such as "259:0", and whether the node is a block device. Number returns "" for any other
// file.
func Number(file unix.Stat_t) (number string, block bool) {
	kind := file.Mode & unix.S_IFMT
	if kind != unix.S_IFBLK && kind != unix.S_IFCHR {
		return "", false
	}
	device := uint64(file.Rdev) // the type of Rdev differs between architectures
	return fmt.Sprintf("%d:%d", unix.Major(device), unix.Minor(device)), kind == unix.S_IFBLK
}

// Name returns the kernel's name for the device, such as "nvme0n1p2".
func (n Node) Name() string { return path.Base(n.SysPath) }

// NodesOf returns all nodes that give access to a device. The device's own node comes first.
func (t *Tree) NodesOf(sysPath string) ([]Node, error) {
	d := t.DiskAt(sysPath)
	return d.Nodes, d.err
}

// DiskAt returns the block device at sysPath, together with all nodes that give access to it.
func (t *Tree) DiskAt(sysPath string) Disk {
	var d Disk
	all, twins := nodePaths(t.Recording(&d.err), sysPath)
	d.Twins = twins
	for _, p := range all {
		number, err := t.Attr(p, "dev")
		if err != nil && !errors.Is(err, ErrGone) {
			d.err = err
		}
		d.Nodes = append(d.Nodes, Node{p, t.Link(p, "subsystem") == "block", number})
	}
	return d
}

// Disk is a block device together with the nodes that give access to it. A disk and its partition cannot both be open exclusively
// (bd_may_claim in block/bdev.c). Nodes includes the nodes of the disk's twins.
type Disk struct {
	Nodes []Node   // the device itself first
	Twins []string // sysfs paths of other block devices that represent the same disk
	err   error    // error from finding the nodes or reading their numbers
}

// Name returns the kernel's name for the disk, such as "nvme0n1p2".
func (d Disk) Name() string { return d.Nodes[0].Name() }

// Part returns the first of the disk's block devices that the function "matches" selects.
func (d Disk) Part(matches func(Node) bool) (Node, bool) {
	return findNode(d.Nodes, func(n Node) bool { return n.Block && matches(n) })
}

// findNode returns the first given node that the function "matches" selects.
func findNode(nodes []Node, matches func(Node) bool) (Node, bool) {
	if i := slices.IndexFunc(nodes, matches); i >= 0 {
		return nodes[i], true
	}
	return Node{}, false
}

// nodePaths returns the sysfs paths of all devices whose nodes give access to a device. The device's own path comes first. For a
// disk, the other devices are its partitions, its devices for SCSI commands (drivers/scsi/sg.c, block/bsg.c), and all devices of
// its twins. For an NVMe namespace, the other devices also include its disk or generic device, and its controllers. A controller
// accepts commands for each of its namespaces (drivers/nvme/host/ioctl.c, nvme_dev_ioctl). For a partition or a device for SCSI
// commands, the other devices include the disk. An exclusive open of the disk does not detect a process that has one of the
// character devices open.
func nodePaths(t *Tree, sysPath string) (all, twins []string) {
	all, number := []string{sysPath}, ""
	add := func(paths ...string) {
		for _, p := range paths {
			if p != "" && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	switch t.Link(sysPath, "subsystem") {
	case "block":
		if t.IsPartition(sysPath) {
			number, _ = t.Attr(sysPath, "partition")
			add(path.Dir(sysPath))
		}
	case "scsi_generic", "bsg":
		add(t.SCSIDisks(sysPath)...)
	}
	for _, p := range slices.Clone(all) {
		add(nvmeNodes(t, p)...)
		twins = append(twins, twinsOf(t, p)...)
		for _, twin := range twins {
			add(twin)
			add(nvmeNodes(t, twin)...)
		}
	}
	for _, p := range slices.Clone(all) {
		if t.Link(p, "subsystem") != "block" || t.IsPartition(p) {
			continue
		}
		for _, partition := range t.Partitions(p) {
			if n, err := t.Attr(partition, "partition"); err != nil || number == "" || n == number {
				add(partition)
			}
		}
		for _, class := range [...]string{"/device/scsi_generic", "/device/bsg"} {
			for _, name := range t.Names(p + class) {
				add(t.Resolve(p + class + "/" + name))
			}
		}
	}
	return all, twins
}

// SCSIDisks returns the disks that accept commands from the scsi_generic or bsg node at sysPath. The node of a SCSI device gives
// access to at most one disk. The node of a SCSI host gives access to all of the host's disks. A UFS node's device has no
// subsystem, and its parent is the host (ufs_bsg_probe in drivers/ufs/core/ufs_bsg.c).
func (t *Tree) SCSIDisks(sysPath string) (disks []string) {
	above := t.Resolve(sysPath + "/device")
	if t.Link(above, "subsystem") != "scsi" {
		above = path.Dir(above)
	}
	for _, name := range t.Names("/sys/block") {
		if p := t.Resolve("/sys/block/" + name); strings.HasPrefix(p, above+"/") {
			disks = append(disks, p)
		}
	}
	return disks
}

// twinsOf returns the sysfs paths of other block devices that have the same identity as the disk at sysPath. twinsOf omits hidden
// disks, because native multipathing has already combined them. twinsOf also omits a disk with a removable medium, because its
// identity is that of the drive rather than the medium. A dm device has no identity.
func twinsOf(t *Tree, sysPath string) (found []string) {
	const all = "/sys/block"
	identity := identityOf(t, sysPath)
	if identity == "" || Removable(t, sysPath) {
		return nil
	}
	for _, name := range t.Names(all) {
		if identityOf(t, all+"/"+name) != identity {
			continue
		}
		p := t.Resolve(all + "/" + name)
		if p != "" && p != sysPath && t.Uint(p, "hidden") == 0 && !Removable(t, p) {
			found = append(found, p)
		}
	}
	return found
}

// identityOf returns the identity of the disk at sysPath, or "". The WWID identifies an NVMe namespace (wwid_show in
// drivers/nvme/host/sysfs.c) or a SCSI logical unit (scsi_vpd_lun_id). A disk without a WWID is identified by its serial number
// and its model. The serial number comes from a SCSI page or from a virtio_blk attribute.
func identityOf(t *Tree, sysPath string) string {
	for _, name := range [...]string{"wwid", "device/wwid", "device/vpd_pg80", "serial"} {
		if id, _ := t.Attr(sysPath, name); len(id) > 4 { // the header of a page has 4 bytes
			if model, _ := t.Attr(sysPath, "device/model"); !strings.HasSuffix(name, "wwid") {
				id += " " + model
			}
			return name + "=" + id
		}
	}
	return ""
}

// Removable reports whether a disk's medium can be removed from its drive. Such a drive's WWID and serial number do not identify
// the medium (Documentation/ABI/stable/sysfs-block, removable). The diskseq identifies the medium. When the medium has been
// changed, the kernel increments the diskseq the next time that the disk is polled or opened (disk_check_events in
// block/disk-events.c, sd_open). No process can read the new medium before that.
func Removable(t *Tree, sysPath string) bool { return t.Uint(sysPath, "removable") != 0 }
