// SPDX-License-Identifier: Apache-2.0

package device

// Whether this host uses a block device, or anything on it would be lost: then it must not be handed out.
//
// Follows: Documentation/ABI/stable/sysfs-block (holders, partition, dev); fs/btrfs/sysfs.c; drivers/block/loop.c; for
// mounts, swaps and exports see package pseudofs.
//
// No single source tells. A mounted file system is in mountinfo, but btrfs shows a device number of its own there and
// names one of its devices; LVM, md and bcache are in holders/ while they run; what was put away is only known by what
// udev has read off the disk, and udev may be late. Where something cannot be read, the device counts as used. All of it
// is a first sieve: who opens the node, exclusively, has the last word.

import (
	"errors"
	"path"
	"path/filepath"
	"strings"

	"github.com/metalplug/metalplug/daemon/pseudofs"
	"github.com/metalplug/metalplug/udev"
)

// onTop selects what is built on disks, which is not below them in sysfs.
var onTop = udev.Match{Subsystem: "block", Properties: map[string]string{"DEVNAME": "/dev/dm-*|/dev/md*|/dev/bcache*|/dev/loop*"}}

// block is a disk or one of its partitions.
type block struct {
	sysPath string
	number  string // "259:0"
}

// name returns what the kernel calls it: "nvme0n1p2".
func (b block) name() string { return path.Base(b.sysPath) }

// inUse returns why a block device must be left alone as [ErrInUse], nil if nothing was found.
func inUse(h *Host, u udev.Device) error {
	blocks := blocksAt(h, u.SysPath)
	for _, check := range []func(*Host, []block) error{mounted, swapped, held, looped, exported} {
		if err := check(h, blocks); err != nil {
			return err
		}
	}
	return occupied(h, u)
}

// blocksAt returns the block device at sysPath with its partitions, or a partition with its disk: whoever has claimed
// one of them has a claim on the other (bd_may_claim in block/bdev.c).
func blocksAt(h *Host, sysPath string) []block {
	paths := []string{sysPath}
	if isPartition(h, sysPath) {
		paths = append(paths, path.Dir(sysPath))
	}
	paths = append(paths, partitionsOf(h, sysPath)...)
	blocks := make([]block, len(paths))
	for i, p := range paths {
		number, err := h.Attr(p, "dev")
		if err != nil {
			number = "" // matches no line of mountinfo; the names still do
		}
		blocks[i] = block{p, number}
	}
	return blocks
}

func isPartition(h *Host, sysPath string) bool { return h.Present(sysPath + "/partition") }

// partitionsOf returns the sysfs paths of a disk's partitions, whose names begin with that of the disk (bdevname).
func partitionsOf(h *Host, sysPath string) []string {
	var partitions []string
	for _, name := range h.Names(sysPath) {
		if strings.HasPrefix(name, path.Base(sysPath)) && isPartition(h, sysPath+"/"+name) {
			partitions = append(partitions, sysPath+"/"+name)
		}
	}
	return partitions
}

// mounted looks among the mounts of this host, which may be others than those of a confined daemon, and among its own.
func mounted(h *Host, blocks []block) error {
	var unread []error
	for _, name := range []string{"/proc/1/mountinfo", "/proc/self/mountinfo"} {
		table, err := h.ReadAll(name)
		if err != nil {
			unread = append(unread, err)
			continue
		}
		for m := range pseudofs.Mounts(table) {
			if b, ok := mountOf(h, m, blocks); ok {
				return hostUse{inUsef("%s is mounted on %s", b.name(), m.Where), true}
			}
		}
	}
	if len(unread) == 2 {
		return inUsef("whether it is mounted cannot be told: %w", joined(unread...))
	}
	return nil
}

// mountOf tells which of the blocks a mount is about, if any.
func mountOf(h *Host, m pseudofs.Mount, blocks []block) (found block, ok bool) {
	for _, b := range blocks {
		if b.number == m.Number {
			return b, true
		}
	}
	if m.Anonymous() {
		return blockNamed(h, m.Source, blocks)
	}
	return block{}, false
}

// blockNamed returns that of the blocks whose node a name in /dev leads to.
func blockNamed(h *Host, name string, blocks []block) (found block, ok bool) {
	if !strings.HasPrefix(name, "/dev/") {
		return block{}, false
	}
	target, err := filepath.EvalSymlinks(h.Path(name))
	if err != nil {
		target = name
	}
	for _, b := range blocks {
		if pseudofs.IsNode(target, b.name()) {
			return b, true
		}
	}
	return block{}, false
}

func swapped(h *Host, blocks []block) error {
	table, err := h.ReadAll("/proc/swaps")
	switch {
	case errors.Is(err, ErrGone):
		return nil // a kernel without CONFIG_SWAP
	case err != nil:
		return inUsef("whether it is swapped to cannot be told: %w", err)
	}
	for name := range pseudofs.Swaps(table) {
		if b, ok := blockNamed(h, name, blocks); ok {
			return hostUse{inUsef("%s is swapped to", b.name()), true}
		}
	}
	return nil
}

// held looks for what the kernel has built on top: LVM, md, bcache, and btrfs, which does not appear in holders/.
func held(h *Host, blocks []block) error {
	for _, b := range blocks {
		if holders := h.Names(b.sysPath + "/holders"); len(holders) > 0 {
			return hostUse{inUsef("%s is part of %s", b.name(), strings.Join(holders, ", ")), false}
		}
		for _, filesystem := range h.Names("/sys/fs/btrfs") {
			if h.Present("/sys/fs/btrfs/" + filesystem + "/devices/" + b.name()) {
				return hostUse{inUsef("%s is part of the mounted btrfs %s", b.name(), filesystem), false}
			}
		}
	}
	return nil
}

// looped looks for loop devices on top: these claim nothing, so that even an exclusive open would not notice.
func looped(h *Host, blocks []block) error {
	for _, name := range h.Names("/sys/class/block") {
		if !numbered(name, "loop") {
			continue
		}
		backing, err := h.Read("/sys/class/block/" + name + "/loop/backing_file")
		if err != nil {
			continue // not set up
		}
		if b, ok := blockNamed(h, backing, blocks); ok {
			return hostUse{inUsef("%s is the file of %s", b.name(), name), false}
		}
	}
	return nil
}

// exported looks for what the kernel serves to others: that is not claimed either. A target may have the whole controller.
func exported(h *Host, blocks []block) error {
	exports, err := pseudofs.Exports(h.Path("/sys"))
	if err != nil {
		return inUsef("whether it is exported cannot be told: %w", err)
	}
	for _, b := range blocks {
		for _, controller := range nvmeControllers(h, b.sysPath) {
			blocks = append(blocks, block{controller, ""})
		}
	}
	for _, e := range exports {
		if b, ok := blockNamed(h, e.Name, blocks); ok {
			return hostUse{inUsef("%s is exported by %s", b.name(), e.By), true}
		}
	}
	return nil
}

// occupied looks for partitions and for what udev's builtin blkid has found on the device itself.
func occupied(h *Host, u udev.Device) error {
	if partitions := partitionsOf(h, u.SysPath); len(partitions) > 0 {
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
