// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Host is the machine whose devices are looked at: the one seam between the classes and the kernel.
type Host struct {
	sysfs.Tree
	Touch

	Holds func(id string) bool // tells whether a pod holds a device; nil: none does
	// Fingerprint returns by what the data that a pod has left on a disk is known; nil or empty: it is not known.
	Fingerprint func(id string) string

	Erases func(id string) bool // tells whether a disk is offered whatever is on it, since that will be erased; nil: none is
	// Proven reports whether there is evidence that nothing is on a disk. A look reads such a disk even if udev found data,
	// since udev's database is older than an erasure until udevd has inspected the disk again. nil: there is none.
	Proven func(id string) bool
}

// Instance returns a number that tells what is at a sysfs path from what was there before, within a boot: that of the
// directory, which the kernel gives to no other for a long time (kernfs_new_node, fs/kernfs/dir.c). 0: nothing is there.
func (h *Host) Instance(sysPath string) uint64 {
	found, err := h.Stat(sysPath)
	if err != nil {
		return 0
	}
	return found.Ino
}

// PCIParent returns the sysfs path of the nearest PCI function at or above sysPath; empty if there is none.
func (h *Host) PCIParent(sysPath string) string {
	return h.Above(sysPath, "pci")
}

// NUMANode returns the NUMA node of the device at sysPath or of the nearest device above it that has one; -1 if none
// has, or if that node is not online. The kubelet refuses nodes that it does not know.
func (h *Host) NUMANode(sysPath string) int {
	for p := range sysfs.Up(sysPath) {
		node, err := h.Int(p, "numa_node")
		if err != nil || node < 0 {
			continue
		}
		if h.Present("/sys/devices/system/node") && !h.Present(fmt.Sprintf("/sys/devices/system/node/node%d", node)) {
			return -1
		}
		return int(node)
	}
	return -1
}

// Node returns the node name for a container: in the container its usual name, on the host the first of the links that
// leads to it, so that the name still means the same device after a reboot. Not being there is [ErrIncomplete].
func (h *Host) Node(name string, links ...string) (Node, error) {
	target, err := h.Stat(name)
	if err != nil {
		return Node{}, incompletef("%s is missing", name)
	}
	n := Node{Host: name, Container: name}
	i := slices.IndexFunc(links, func(link string) bool {
		found, err := h.Stat(link)
		return err == nil && found.Dev == target.Dev && found.Ino == target.Ino
	})
	if i >= 0 {
		n.Host = links[i]
	}
	return n, nil
}

// Number returns the name below /dev by which a device node goes by its number, "char/195:0" or "block/259:1"; empty: the
// name leads to no device node.
func (h *Host) Number(name string) string {
	found, err := h.Stat(name)
	if err != nil {
		return ""
	}
	number := uint64(found.Rdev) // its type differs between architectures
	switch found.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return fmt.Sprintf("char/%d:%d", unix.Major(number), unix.Minor(number))
	case unix.S_IFBLK:
		return fmt.Sprintf("block/%d:%d", unix.Major(number), unix.Minor(number))
	}
	return ""
}
