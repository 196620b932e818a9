// SPDX-License-Identifier: Apache-2.0

package device

// The functions in this file check whether the host uses a block device, and whether the device contains data that could be
// lost. A device that is in use or contains data must not be offered.
//
// Package sysfs reads the kernel's files, which show whether the host uses a disk. Data on an unused disk shows up only in udev's
// database, which may be out of date. These checks are therefore a first filter, and metalplug-reset makes the final check by
// opening the disk exclusively.

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// stackedDevices selects devices that are built on top of disks. Their events must lead to an inspection of the disks, even
// though these devices are not below their disks in sysfs.
var stackedDevices = udev.Match{Subsystem: "block", Properties: map[string]string{"DEVNAME": "/dev/dm-*|/dev/md*|/dev/bcache*|/dev/loop*"}}

// inUse returns the reason why a block device must not be offered, or nil. The error is [ErrInUse] if this host uses the device.
// If two paths lead to the same disk, inUse returns an error, because the kernel shows the use of each path separately.
func inUse(h *Host, u udev.Device) error {
	d := h.DiskAt(u.SysPath)
	switch err := h.InUse(d); {
	case err != nil:
		return inUsef("%w", err)
	case len(d.Twins) > 0:
		return twinError(path.Base(d.Twins[0]))
	}
	return foundContent(h, u)
}

// ErrTwin means that another device has the same identity.
var ErrTwin = errors.New("two paths to one disk, or a copy")

// twinError returns the error for a disk that has the same identity as another device, which may be a second path to the disk.
// metalplug offers neither device, because two pods could otherwise get the same disk.
func twinError(name string) error {
	return fmt.Errorf("not for containers: %s has the same identity: %w; let multipathd or nvme_core.multipath combine the paths, or remove the copy", name, ErrTwin)
}

// foundContent returns an error if the device has partitions, or if udev's builtin blkid has found a signature on the device.
func foundContent(h *Host, u udev.Device) error {
	if partitions := h.Partitions(u.SysPath); len(partitions) > 0 {
		names := make([]string, len(partitions))
		for i, p := range partitions {
			names[i] = path.Base(p)
		}
		return dataf("partitions (%s)", strings.Join(names, ", "))
	}
	// A partition inherits ID_PART_TABLE_TYPE from its disk, so this property is ignored for partitions
	// (60-persistent-storage.rules).
	if table := u.Properties.Value("ID_PART_TABLE_TYPE"); table != "" && u.DevType != "partition" {
		return dataf("a partition table (%s)", table)
	}
	for _, key := range []string{"ID_FS_TYPE", "ID_FS_USAGE"} {
		if content := u.Properties.Value(key); content != "" {
			return dataf("udev found %s=%s", key, content)
		}
	}
	return nil
}
