// SPDX-License-Identifier: Apache-2.0

package sysfs

// This file checks whether this machine uses a block device. The functions in this file read only kernel files, and never open
// the device.
//
// Follows Documentation/ABI/stable/sysfs-block (holders, partition, dev), block/holder.c, fs/btrfs/sysfs.c,
// drivers/block/loop.c and zram/zram_drv.c.
//
// No single file shows every use of a disk. mountinfo lists mounted file systems. For btrfs, mountinfo shows a number that does
// not belong to any disk, and names only one of the disks. LVM, md and bcache are in holders/ while they are active. If metalplug
// cannot determine whether a device is in use, it treats the device as in use.
//
// A disk with two paths appears as two block devices, unless native multipathing (nvme_core.multipath) combines them. If one of
// these block devices is in use, metalplug treats both as in use (see [Disk]).

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Written returns the number of sectors that were written or discarded on the disk at sysPath and its partitions since the disk
// appeared (Documentation/block/stat.rst). The kernel does not count passthrough commands. With native multipathing, kernels before
// Linux 6.4 count writes only for the paths to an NVMe disk. If the kernel does not count writes, the result is at least
// [Uncounted].
func Written(t *Tree, sysPath string) (sectors uint64) {
	if counts, err := t.Attr(sysPath, "queue/iostats"); err == nil && counts == "0" {
		return Uncounted
	}
	text, err := t.Attr(sysPath, "stat")
	if err != nil && !errors.Is(err, ErrGone) {
		return Uncounted
	}
	fields := strings.Fields(text)
	for _, i := range [...]int{6, 13} { // sectors written, sectors discarded
		if i < len(fields) {
			n, _ := strconv.ParseUint(fields[i], 10, 64)
			sectors += n
		}
	}
	if sectors == 0 && t.Link(path.Dir(sysPath), "subsystem") == nvmeSubsystemClass {
		for _, controller := range t.NVMeControllers(sysPath) {
			for _, disk := range children(t, controller, "block") {
				if isPath(t, disk, sysPath) {
					sectors += Written(t, disk)
				}
			}
		}
	}
	return sectors
}

// Uncounted is more than the number of sectors that can be written to any disk. [Written] adds Uncounted for each block device
// whose attribute queue/iostats is 0, or whose attribute stat cannot be read.
const Uncounted = 1 << 60

// IsPartition reports whether the block device at sysPath is a partition.
func (t *Tree) IsPartition(sysPath string) bool { return t.Present(sysPath + "/partition") }

// Partitions returns the sysfs paths of a disk's partitions, whose names begin with the disk's name (bdevname).
func (t *Tree) Partitions(sysPath string) []string {
	var partitions []string
	for _, name := range t.Names(sysPath) {
		if strings.HasPrefix(name, path.Base(sysPath)) && t.IsPartition(sysPath+"/"+name) {
			partitions = append(partitions, sysPath+"/"+name)
		}
	}
	return partitions
}

// Use is an error that describes how this machine uses a block device.
type Use struct {
	Text string // "nvme0n1p1 is mounted on /data"
	// ByHost is true if it is certain that the host itself uses the device. If ByHost is false, the user may be a pod that has the
	// device.
	ByHost bool
	// Unread is the error from reading a file that shows the use, or nil. After an error, metalplug treats the device as in use.
	Unread error
}

// Error returns the text, followed by the cause if there is one.
func (u *Use) Error() string {
	if u.Unread != nil {
		return u.Text + ": " + u.Unread.Error()
	}
	return u.Text
}

// Unwrap returns Unread.
func (u *Use) Unwrap() error { return u.Unread }

func usef(byHost bool, format string, args ...any) error {
	return &Use{Text: fmt.Sprintf(format, args...), ByHost: byHost}
}

func undetermined(d Disk, question string, err error) error {
	return &Use{Text: fmt.Sprintf("cannot determine whether %s is %s", d.Name(), question), Unread: err}
}

// InUse returns a *[Use] if the disk d is in use or may be in use, and nil otherwise. InUse may miss a loop device, because it
// checks only the names of backing files.
func (t *Tree) InUse(d Disk) error {
	failure := d.err
	for _, check := range []func(*Tree, Disk) error{checkMounts, checkSwaps, checkHolders, checkBtrfs, checkExports, checkBackingFiles} {
		if err := check(t.Recording(&failure), d); err != nil {
			return err
		}
	}
	if failure != nil {
		return undetermined(d, "used", failure)
	}
	return nil
}

// checkMounts checks the mounts of this host and of this process. A confined process may have different mounts from the host. If
// procfs hides process 1 (hidepid=2), only this process's mounts are checked.
func checkMounts(t *Tree, d Disk) error {
	own, err := t.ReadAll("/proc/self/mountinfo")
	if err != nil {
		return undetermined(d, "mounted", err)
	}
	host, err := t.ReadAll("/proc/1/mountinfo")
	if err != nil && !errors.Is(err, ErrGone) {
		return undetermined(d, "mounted", err)
	}
	for line := range strings.Lines(host + own) {
		if p, where := mountOf(t, line, d); where != "" {
			return usef(true, "%s is mounted on %s", p.Name(), where)
		}
	}
	return nil
}

// mountOf checks whether a mountinfo line describes a mount of a disk or of one of its partitions. If so, mountOf returns this
// part of the disk and the mount point. Otherwise, it returns an empty mount point. The device number "0:N" means that the file
// system has no device or, like btrfs, several devices. For such a file system, only the source that was passed to mount(2) can
// name a block device. The source may be a node or a udev link. Follows Documentation/filesystems/proc.rst, 3.5.
func mountOf(t *Tree, line string, d Disk) (part Node, where string) {
	mount, filesystem, _ := strings.Cut(line, " - ")
	fields := strings.Fields(mount) // ID, parent, major:minor, root, mount point, …
	if len(fields) < 5 {
		return Node{}, ""
	}
	part, ok := d.Part(func(n Node) bool { return n.Number == fields[2] })
	if source := strings.Fields(filesystem); !ok && strings.HasPrefix(fields[2], "0:") && len(source) > 1 { // type, source, …
		part, ok = partNamed(t, unescape(source[1]), d)
	}
	if !ok {
		return Node{}, ""
	}
	return part, unescape(fields[4])
}

// partNamed resolves the links at a name in /dev, and returns the part of the disk that the resulting node belongs to. The name
// may be misleading, but metalplug-reset later detects mounts, swap space and loop devices reliably. The kernel opens a device
// exclusively to mount it or to swap to it. For a loop device, the kernel shows the backing device's number.
func partNamed(t *Tree, name string, d Disk) (Node, bool) {
	if !strings.HasPrefix(name, "/dev/") {
		return Node{}, false
	}
	target, err := filepath.EvalSymlinks(t.Path(name))
	if err != nil {
		target = name
	}
	return d.Part(func(n Node) bool { return isNode(target, n.Name()) })
}

func checkSwaps(t *Tree, d Disk) error {
	table, err := t.ReadAll("/proc/swaps")
	switch {
	case errors.Is(err, ErrGone):
		return nil // the kernel was built without CONFIG_SWAP
	case err != nil:
		return undetermined(d, "swapped to", err)
	}
	for line := range strings.Lines(table) {
		name, _, _ := strings.Cut(line, " ")
		if p, ok := partNamed(t, unescape(name), d); ok {
			return usef(true, "%s is swapped to", p.Name())
		}
	}
	return nil
}

// checkHolders checks for devices that the kernel has built on top of the disk, such as LVM, md and bcache.
func checkHolders(t *Tree, d Disk) error {
	if p, ok := d.Part(func(n Node) bool { return len(t.Names(n.SysPath+"/holders")) > 0 }); ok {
		return usef(false, "%s is part of %s", p.Name(), strings.Join(t.Names(p.SysPath+"/holders"), ", "))
	}
	return nil
}

// checkBtrfs checks whether the disk is part of a mounted btrfs file system. For a btrfs on several disks, mountinfo may name
// another disk.
func checkBtrfs(t *Tree, d Disk) error {
	for _, filesystem := range t.Names("/sys/fs/btrfs") {
		if p, ok := d.Part(func(n Node) bool { return t.Present("/sys/fs/btrfs/" + filesystem + "/devices/" + n.Name()) }); ok {
			return usef(false, "%s is part of the mounted btrfs %s", p.Name(), filesystem)
		}
	}
	return nil
}

// checkBackingFiles checks for zram and loop devices that use the disk. Loop devices do not open the disk exclusively, so even an
// exclusive open would not detect them. If this attribute of a zram or loop device cannot be read, the device is not set up.
func checkBackingFiles(t *Tree, d Disk) error {
	const class = "/sys/class/block"
	for _, kind := range []struct{ prefix, attr string }{{"loop", "/loop/backing_file"}, {"zram", "/backing_dev"}} {
		for _, name := range t.Numbered(class, kind.prefix) {
			backing, _ := t.Read(class + "/" + name + kind.attr)
			if p, ok := partNamed(t, backing, d); ok {
				return usef(false, "%s is the backing file of %s", p.Name(), name)
			}
		}
	}
	return nil
}

// isNode reports whether a name in /dev is the given device's node. The name must not be a link. sysfs shows "!" instead of "/"
// in device names (dev_set_name).
func isNode(name, device string) bool {
	return path.Base(name) == path.Base(strings.ReplaceAll(device, "!", "/"))
}

// unescape decodes escapes such as "\040", which the kernel writes for white space in a path (mangle_path in fs/seq_file.c,
// mm/swapfile.c).
func unescape(text string) string {
	for from := 0; ; from++ {
		i := strings.IndexByte(text[from:], '\\')
		if from += i; i < 0 {
			return text
		}
		if code, err := strconv.ParseUint(text[from+1:min(from+4, len(text))], 8, 8); err == nil && from+4 <= len(text) {
			text = text[:from] + string([]byte{byte(code)}) + text[from+4:]
		}
	}
}
