// SPDX-License-Identifier: Apache-2.0

package reset

// Whether anybody uses a disk, as far as the kernel tells without opening it. The package daemon/device asks the same
// before it offers a disk; this is the program that acts, so it asks by itself.
//
// Follows: block/holder.c; fs/btrfs/sysfs.c; drivers/block/loop.c; for mounts, swaps and exports see package pseudofs.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/pseudofs"
)

// disk is a whole disk with its partitions.
type disk struct {
	sysPath    string
	partitions []string // their sysfs paths
	numbers    []string // device numbers, "259:0", of all of them
}

func (d disk) name() string { return path.Base(d.sysPath) }

// parts are the sysfs paths of the disk and its partitions.
func (d disk) parts() []string { return append([]string{d.sysPath}, d.partitions...) }

// diskAt looks at a disk. Its partitions are below it and have names that begin with its own (bdevname).
func (h *host) diskAt(sysPath string) (disk, error) {
	d := disk{sysPath: sysPath}
	for _, name := range h.names(sysPath) {
		if p := sysPath + "/" + name; strings.HasPrefix(name, d.name()) && h.exists(p+"/partition") {
			d.partitions = append(d.partitions, p)
		}
	}
	for _, p := range d.parts() {
		number, err := h.attr(p, "dev")
		if err != nil {
			return disk{}, err
		}
		d.numbers = append(d.numbers, number)
	}
	return d, nil
}

// unused returns nil if nothing shows that a disk is used, or who uses it, as [Busy].
func (h *host) unused(d disk) error {
	for _, check := range []func(disk) error{h.mounted, h.swapped, h.held, h.inBtrfs, h.looped, h.exported} {
		if err := check(d); err != nil {
			return err
		}
	}
	return nil
}

// mounted looks at the mounts of this host, by those of process 1, and at our own, which may be others.
func (h *host) mounted(d disk) error {
	for _, name := range []string{"/proc/1/mountinfo", "/proc/self/mountinfo"} {
		table, err := h.table(name)
		if err != nil {
			return errorf(Refused, "whether %s is mounted cannot be told: %w", d.name(), err)
		}
		for m := range pseudofs.Mounts(table) {
			if what, ok := h.mountOf(m, d); ok {
				return errorf(Busy, "%s is mounted on %s", what, m.Where)
			}
		}
	}
	return nil
}

// mountOf tells which part of a disk a mount is about, if any.
func (h *host) mountOf(m pseudofs.Mount, d disk) (what string, ok bool) {
	if i := slices.Index(d.numbers, m.Number); i >= 0 {
		return path.Base(d.parts()[i]), true
	}
	if m.Anonymous() {
		return h.partNamed(m.Source, d)
	}
	return "", false
}

// partNamed returns that part of a disk whose node a name in /dev leads to.
func (h *host) partNamed(name string, d disk) (what string, ok bool) {
	if !strings.HasPrefix(name, "/dev/") {
		return "", false
	}
	if target, err := filepath.EvalSymlinks(h.root + name); err == nil {
		name = target
	}
	for _, p := range d.parts() {
		if pseudofs.IsNode(name, path.Base(p)) {
			return path.Base(p), true
		}
	}
	return "", false
}

func (h *host) swapped(d disk) error {
	if !h.exists("/proc/swaps") {
		return nil // a kernel without CONFIG_SWAP
	}
	table, err := h.table("/proc/swaps")
	if err != nil {
		return errorf(Refused, "whether %s is swapped to cannot be told: %w", d.name(), err)
	}
	for name := range pseudofs.Swaps(table) {
		if what, ok := h.partNamed(name, d); ok {
			return errorf(Busy, "%s is swapped to", what)
		}
	}
	return nil
}

// held looks for what the kernel has built on top: LVM, md, bcache.
func (h *host) held(d disk) error {
	for _, p := range d.parts() {
		if holders := h.names(p + "/holders"); len(holders) > 0 {
			return errorf(Busy, "%s is part of %s", path.Base(p), strings.Join(holders, ", "))
		}
	}
	return nil
}

// inBtrfs looks for file systems of which the disk is not the device that mountinfo names.
func (h *host) inBtrfs(d disk) error {
	for _, filesystem := range h.names("/sys/fs/btrfs") {
		for _, p := range d.parts() {
			if h.exists("/sys/fs/btrfs/" + filesystem + "/devices/" + path.Base(p)) {
				return errorf(Busy, "%s is part of the mounted btrfs %s", path.Base(p), filesystem)
			}
		}
	}
	return nil
}

// looped looks for loop devices on top: these claim nothing, so that an exclusive open does not notice. The name of what
// is below one may be that of a node anywhere, so that the loop device itself is asked.
func (h *host) looped(d disk) error {
	for _, name := range h.names("/sys/block") {
		backing, err := h.attr("/sys/block/"+name, "loop/backing_file")
		if err != nil {
			continue // no loop device, or not set up
		}
		if what, ok := h.partNamed(backing, d); ok {
			return errorf(Busy, "%s is the file of %s", what, name)
		}
		number, err := h.below(name)
		switch {
		case errors.Is(err, unix.ENXIO), errors.Is(err, Gone):
			continue // it was taken down meanwhile
		case err != nil:
			return errorf(Refused, "what is below %s cannot be told: %w", name, err)
		}
		if i := slices.Index(d.numbers, number); i >= 0 {
			return errorf(Busy, "%s is the file of %s", path.Base(d.parts()[i]), name)
		}
	}
	return nil
}

// exported looks for what the kernel serves to others over a network, which claims nothing either: the disk, a
// partition, or all of its controller.
func (h *host) exported(d disk) error {
	exports, err := pseudofs.Exports(h.root + "/sys")
	if err != nil {
		return errorf(Refused, "whether %s is exported cannot be told: %w", d.name(), err)
	}
	if controllers, err := h.controllersOf(d.sysPath); err == nil { // else it is of none
		d.partitions = slices.Concat(d.partitions, controllers)
	}
	for _, e := range exports {
		if what, ok := h.partNamed(e.Name, d); ok {
			return errorf(Busy, "%s is exported by %s", what, e.By)
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
