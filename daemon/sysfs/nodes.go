// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"path"
	"slices"
)

// Nodes returns the sysfs paths of all devices by whose nodes a device can be reached, its own first: of a disk its
// partitions and the nodes of SCSI commands (drivers/scsi/sg.c, block/bsg.c), of a namespace of NVMe also its disk or its
// generic device, and the controllers that reach it, through which commands for each of their namespaces can be sent
// (drivers/nvme/host/ioctl.c, nvme_dev_ioctl); and of a disk all that of its twins. An exclusive open of the disk notices none
// of those.
func (t *Tree) Nodes(sysPath string) []string {
	all := append([]string{sysPath}, t.nvmeNodes(sysPath)...)
	for _, twin := range twins(t, sysPath) {
		for _, p := range append([]string{twin}, t.nvmeNodes(twin)...) {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	for _, p := range slices.Clone(all) {
		if t.Link(p, "subsystem") != "block" {
			continue
		}
		all = append(all, t.Partitions(p)...)
		for _, class := range [...]string{"/device/scsi_generic", "/device/bsg"} {
			for _, name := range t.Names(p + class) {
				all = append(all, t.Resolve(p+class+"/"+name))
			}
		}
	}
	return all
}

// Node is the node of a device.
type Node struct {
	SysPath string
	Block   bool   // or a character device
	Number  string // "259:0"; empty: the device is going, or has none
}

// Name returns what the kernel calls the device: "nvme0n1p2".
func (n Node) Name() string { return path.Base(n.SysPath) }

// NodesOf returns the nodes of the devices of [Tree.Nodes], in that order.
func (t *Tree) NodesOf(sysPath string) (nodes []Node, err error) {
	for _, p := range t.Nodes(sysPath) {
		number, err := t.Attr(p, "dev")
		if err != nil && !errors.Is(err, ErrGone) {
			return nil, err
		}
		nodes = append(nodes, Node{p, t.Link(p, "subsystem") == "block", number})
	}
	return nodes, nil
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
