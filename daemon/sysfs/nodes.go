// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"path"
	"slices"
)

// reaching returns the sysfs paths of all devices by whose nodes a device can be reached, its own first: of a disk its
// partitions and the nodes of SCSI commands (drivers/scsi/sg.c, block/bsg.c), of a namespace of NVMe also its disk or its
// generic device, and the controllers that reach it, through which commands for each of their namespaces can be sent
// (drivers/nvme/host/ioctl.c, nvme_dev_ioctl); and of a disk all that of its twins. A partition is reached by its disk, and
// a node of SCSI commands is one of its disk. An exclusive open of the disk notices none of those.
func (t *Tree) reaching(sysPath string) (all, twins []string) {
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
		disks := t.Resolve(sysPath+"/device") + "/block"
		for _, name := range t.Names(disks) {
			add(disks + "/" + name)
		}
	}
	for _, p := range slices.Clone(all) {
		add(t.nvmeNodes(p)...)
		twins = append(twins, otherWays(t, p)...)
		for _, twin := range twins {
			add(twin)
			add(t.nvmeNodes(twin)...)
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

// Node is the node of a device.
type Node struct {
	SysPath string
	Block   bool   // or a character device
	Number  string // "259:0"; empty: the device is going, or has none
}

// Name returns what the kernel calls the device: "nvme0n1p2".
func (n Node) Name() string { return path.Base(n.SysPath) }

// NodesOf returns all nodes by which a device can be reached, its own first.
func (t *Tree) NodesOf(sysPath string) ([]Node, error) {
	d := t.DiskAt(sysPath)
	return d.Nodes, d.err
}

// DiskAt returns a block device with all nodes by which it can be reached.
func (t *Tree) DiskAt(sysPath string) Disk {
	all, twins := t.reaching(sysPath)
	d := Disk{Twins: twins}
	for _, p := range all {
		number, err := t.Attr(p, "dev")
		if err != nil && !errors.Is(err, ErrGone) {
			d.err = err
		}
		d.Nodes = append(d.Nodes, Node{p, t.Link(p, "subsystem") == "block", number})
	}
	return d
}

// nvmeNodes returns the other devices of a namespace, and the controllers that reach it; none of what is no namespace.
func (t *Tree) nvmeNodes(sysPath string) (found []string) {
	if class := t.Link(sysPath, "subsystem"); class != "block" && class != nvmeGenericClass {
		return nil
	}
	parent := path.Dir(sysPath)
	dirs := []string{parent}
	switch t.Link(parent, "subsystem") {
	case nvmeClass:
		dirs = t.NVMeSiblings(parent)
	case nvmeSubsystemClass:
		dirs = append(dirs, t.members(parent)...)
	default:
		return nil
	}
	for _, dir := range dirs {
		reaches := dir == parent
		for _, name := range t.Names(dir) {
			p := dir + "/" + name
			class := t.Link(p, "subsystem")
			if class != "block" && class != nvmeGenericClass || !t.sameNamespace(p, sysPath) {
				continue
			}
			reaches = true
			if p != sysPath && t.Uint(p, "hidden") == 0 { // else it is a path, without a node
				found = append(found, p)
			}
		}
		if reaches && t.Link(dir, "subsystem") == nvmeClass {
			found = append(found, dir)
		}
	}
	return found
}
