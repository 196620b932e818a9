// SPDX-License-Identifier: Apache-2.0

package device

// Whether this host uses a block device, or data on it would be lost. Such a device must not be handed out.
//
// Package sysfs reads what the kernel shows. Data that nothing uses at present is known only from what udev read off the
// disk, and udev may be late. All of it is a first sieve. The helper that opens the node exclusively has the last word.

import (
	"errors"
	"path"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// onTop selects what is built on disks, which is not below them in sysfs.
var onTop = udev.Match{Subsystem: "block", Properties: map[string]string{"DEVNAME": "/dev/dm-*|/dev/md*|/dev/bcache*|/dev/loop*"}}

// inUse returns why a block device must be left alone, as [ErrInUse] if it is used, or nil if nothing was found. Where two
// ways reach a disk, each of them shows only a part of its use, such as what was written.
func inUse(h *Host, u udev.Device) error {
	var use *sysfs.Use
	d := h.DiskAt(u.SysPath)
	switch err := h.InUse(d); {
	case errors.As(err, &use) && use.Unread == nil:
		return hostUse{inUsef("%w", use), use.ByHost}
	case err != nil:
		return inUsef("%w", err)
	case len(d.Twins) > 0:
		return twin(path.Base(d.Twins[0]))
	}
	return occupied(h, u)
}

var errTwin = errors.New("two ways to one disk, or a copy")

// twin returns why a disk is not offered to which another device may be a second way. Two pods would have the disk.
func twin(name string) error {
	return excludedf("%s has the same identity: %w; join the ways (nvme_core.multipath, multipathd), or remove one", name, errTwin)
}

// occupied looks for partitions and for what udev's builtin blkid has found on the device itself.
func occupied(h *Host, u udev.Device) error {
	if partitions := h.Partitions(u.SysPath); len(partitions) > 0 {
		names := make([]string, len(partitions))
		for i, p := range partitions {
			names[i] = path.Base(p)
		}
		return dataf("partitions (%s)", strings.Join(names, ", "))
	}
	// A partition inherits this one from its disk (60-persistent-storage.rules).
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
