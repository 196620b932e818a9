// SPDX-License-Identifier: Apache-2.0

package reset

// Whether anybody uses a disk, as far as the kernel tells. The package sysfs answers that for the daemon as well; only
// this program opens nodes, so only it asks a loop device for the number of what is below it.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// disk is a whole disk with its partitions.
type disk struct {
	sysfs.Disk
	sysPath    string
	partitions []string // their sysfs paths
}

func (d disk) name() string { return path.Base(d.sysPath) }

// diskAt looks at a disk.
func (h *host) diskAt(sysPath string) (disk, error) {
	d := disk{Disk: h.DiskAt(sysPath), sysPath: sysPath, partitions: h.Partitions(sysPath)}
	if p, ok := d.Part(func(n sysfs.Node) bool { return n.Number == "" }); ok {
		return disk{}, errorf(Gone, "%s has no device number", p.Name())
	}
	return d, nil
}

// unused returns nil if nothing shows that a disk is used, or who uses it, as [Busy].
func (h *host) unused(d disk) error {
	if err := h.InUse(d.Disk); err != nil {
		return errorf(Busy, "%w", err)
	}
	if !h.Present("/proc/1/mountinfo") { // what only this unit has mounted is not enough for an erasure
		return errorf(Busy, "whether %s is mounted cannot be told: /proc/1/mountinfo is missing", d.name())
	}
	return h.looped(d)
}

// looped looks for loop devices on top: these claim nothing, so that an exclusive open does not notice. The name of what
// is below one may be that of a node anywhere, so that the loop device itself is asked.
func (h *host) looped(d disk) error {
	for _, name := range h.Names("/sys/block") {
		if !h.Present("/sys/block/" + name + "/loop/backing_file") {
			continue // no loop device, or not set up
		}
		number, err := h.below(name)
		switch {
		case errors.Is(err, unix.ENXIO), errors.Is(err, Gone), errors.Is(err, sysfs.ErrGone):
			continue // it was taken down meanwhile
		case err != nil:
			return errorf(Busy, "what is below %s cannot be told: %w", name, err)
		}
		if p, ok := d.Part(func(n sysfs.Node) bool { return n.Number == number }); ok {
			return errorf(Busy, "%s is the file of %s", p.Name(), name)
		}
	}
	return nil
}

// loopGetStatus64 is LOOP_GET_STATUS64 (include/uapi/linux/loop.h); of struct loop_info64, 232 bytes, lo_rdevice is at 16.
const loopGetStatus64 = 0x4c05

// below returns the number of the device that a loop device is set up on; 0:0 for a regular file.
func (h *host) below(loop string) (number string, err error) {
	fd, err := h.opened("/sys/block/"+loop, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer h.close(fd)
	info := make([]byte, 232)
	if _, err := h.ioctlOn(fd, loopGetStatus64, info); err != nil {
		return "", err
	}
	device := binary.NativeEndian.Uint64(info[16:])
	return fmt.Sprintf("%d:%d", unix.Major(device), unix.Minor(device)), nil
}
