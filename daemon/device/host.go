// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Host is the machine whose devices are looked at. It is the one seam between the classes and the kernel.
type Host struct {
	sysfs.Tree
	Touch

	Notes map[string]Note // by the ID of a device. Nothing writes to it during a look
}

// Note is what the inventory knows of a device and a look needs. With the zero value nothing is known.
type Note struct {
	Held        bool   // a pod holds it, or the daemon works on it, and a look must not disturb that
	Erased      bool   // the disk is offered with any content, which is erased
	Fingerprint string // of the data that a pod left on the disk, or empty
	// Proven says that there is evidence that nothing is on the disk. A look reads such a disk even if udev found data, since
	// udev's database is older than an erasure until udevd has inspected the disk again.
	Proven bool
}

// Instance returns a number that differs between two devices that were at the same sysfs path within a boot, or 0 if there is
// none. It is the inode of the directory. The kernel gives it to no other directory for a long time (kernfs_new_node,
// fs/kernfs/dir.c).
func (h *Host) Instance(sysPath string) uint64 {
	found, err := h.Stat(sysPath)
	if err != nil {
		return 0
	}
	return found.Ino
}

// NUMANode returns the NUMA node of the device at sysPath or of the nearest device above it that has one. It returns -1 if
// none has one, or if that node is not online. The kubelet refuses nodes that it does not know.
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
