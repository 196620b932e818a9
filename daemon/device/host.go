// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Host is the machine whose devices are inspected. The classes access the kernel only through a Host.
type Host struct {
	sysfs.Tree
	Touch

	Notes map[string]Note // keys are device IDs; not modified during an inspection
}

// Note contains facts from the inventory for the inspection of a device. The zero value means that no fact is known.
type Note struct {
	Held        bool   // a pod holds the device or the daemon is working on it; an inspection must disturb neither
	SysPath     string // the last known sysfs path of a disk, otherwise empty
	Erased      bool   // the disk is offered regardless of its content, because it will be erased before use
	Fingerprint string // fingerprint of the data that a pod left on the disk, or empty
	// Forced means that the disk is probed even if udev has found data. One reason is that there is evidence that the disk is blank.
	// After an erasure, udev's database is out of date until udevd has inspected the disk again. The other reason is that a helper
	// may still be working on the disk, even though metalplugd no longer waits for it.
	Forced bool
}

// Instance returns a number for the device at a sysfs path, or 0 if the number is unknown. During one boot, two devices that
// appear at the same path have different numbers. The number is the inode number of the directory. The kernel assigns these
// numbers in ascending order, and reuses a number only after the counter has wrapped around (kernfs_new_node, fs/kernfs/dir.c).
func (h *Host) Instance(sysPath string) uint64 {
	found, err := h.Stat(sysPath)
	if err != nil {
		return 0
	}
	return found.Ino
}

// NUMANode returns the NUMA node of the device at sysPath, or that of its nearest parent that has one, or else -1. An offline
// NUMA node also counts as -1, because the kubelet rejects unknown NUMA nodes.
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
