// SPDX-License-Identifier: Apache-2.0

package reset

// The functions in this file open a disk exclusively (O_EXCL), so that the kernel refuses to mount the disk or to make it part of
// another device. This package calls a disk that is open in this way "held".

import (
	"cmp"
	"context"
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// diskFile is a disk that this process has open.
type diskFile struct {
	*host
	sysfs.Disk
	sysPath string
	fd      int
	twins   []int  // descriptors of other block devices that represent the same disk
	size    int64  // bytes
	block   int64  // size of a logical block in bytes
	seq     uint64 // diskseq, or 0 before Linux 5.15

	controller controller // the data from Identify Controller, or nil before the first request
}

// hold opens a disk exclusively. The kernel refuses an exclusive open if the disk or one of its partitions is mounted, used for
// swap, or part of another device. While the disk is held, the kernel in turn refuses each of these uses (bd_may_claim in
// block/bdev.c). An exclusive open does not detect a process that has opened the node without O_EXCL, such as a virtual machine.
// The parameter flags is O_RDONLY or O_RDWR. An inspection must use O_RDONLY, because udev inspects a disk again when a writable
// descriptor is closed.
//
// A disk may have several block devices, which are called twins. An exclusive open of one of them does not affect the others, so
// hold opens the twins too.
func (h *host) hold(sysPath string, flags int) (f *diskFile, err error) {
	if f, err = h.openDisk(sysPath, flags|unix.O_EXCL); err != nil {
		return nil, cmp.Or(h.checkUnused(h.DiskAt(sysPath)), err) // the errno does not show what uses the disk
	}
	err = h.checkUnused(f.Disk)
	for _, twin := range f.Twins {
		if err != nil {
			break
		}
		var fd int
		if fd, err = h.openDevice(twin, unix.O_RDONLY|unix.O_EXCL); err == nil {
			f.twins = append(f.twins, fd)
		}
	}
	if err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

// openDisk opens a disk and checks that it is the disk that sysfs describes. If the parameter flags contains neither O_EXCL nor a
// write mode, opening the disk does not disturb any other process.
func (h *host) openDisk(sysPath string, flags int) (*diskFile, error) {
	fd, err := h.openDevice(sysPath, flags)
	if err != nil {
		return nil, err
	}
	f := &diskFile{host: h, fd: fd}
	if err := f.inspect(sysPath); err != nil {
		h.close(fd)
		return nil, err
	}
	return f, nil
}

// exclusiveOpenLimit is how long the helper retries a failed exclusive open. Some tools (blkdiscard, mkfs and wipefs) briefly
// open a disk exclusively to check that it is free. If the open still fails after this time, the helper treats the disk as in
// use.
const exclusiveOpenLimit = time.Second

// checkExclusive opens a disk exclusively and closes it again immediately. If the disk cannot be opened exclusively, the error
// contains the reason.
func (h *host) checkExclusive(sysPath string) error {
	f, err := h.hold(sysPath, unix.O_RDONLY)
	if err == nil {
		f.release()
	}
	return err
}

func (f *diskFile) release() {
	for _, fd := range f.twins {
		f.close(fd)
	}
	f.close(f.fd)
}

// inspect checks that the open disk is the disk that sysfs describes.
func (f *diskFile) inspect(sysPath string) (err error) {
	if f.seq, err = f.checkDiskseq(sysPath); err != nil {
		return err
	}
	f.sysPath, f.Disk = sysPath, f.DiskAt(sysPath)
	if p, ok := f.Part(func(n sysfs.Node) bool { return n.Number == "" }); ok {
		return errorf(Gone, "%s has no device number", p.Name())
	}
	if f.size, f.block = f.sizes(); f.size == 0 {
		return errorf(Gone, "%s has no size, because its driver has disabled the disk or the disk is being formatted", f.Name())
	}
	return nil
}

// checkDiskseq checks that an open disk has the diskseq that sysfs shows, and returns this number. The kernel assigns a higher
// diskseq to each disk that appears, so the numbers differ if another disk has replaced the open disk.
func (f *diskFile) checkDiskseq(sysPath string) (seq uint64, err error) {
	seq = f.number(unix.BLKGETDISKSEQ) // 0 before Linux 5.15, where sysfs has no diskseq either
	if want := f.Uint(sysPath, "diskseq"); seq != want {
		return 0, otherDisk(sysPath, seq, want)
	}
	return seq, nil
}

func otherDisk(sysPath string, was, is uint64) error {
	return errorf(Gone, "%s was replaced by another disk: the diskseq is %d, not %d", sysPath, is, was)
}

// checkSameDisk checks that the open disk is the one that the task opened earlier. The parameter seq is the diskseq of that
// earlier disk, or 0 if unknown. Another disk may have taken over the name and device number of the earlier disk.
func (f *diskFile) checkSameDisk(seq uint64) error {
	if seq != 0 && f.seq != seq {
		return otherDisk(f.sysPath, seq, f.seq)
	}
	return nil
}

// number runs an ioctl on an open disk and returns the number of 8 bytes that the kernel reports. If the kernel does not know the
// request, number returns 0. The kernel only copies a field, so no other error is possible (block/ioctl.c).
func (f *diskFile) number(request uintptr) uint64 {
	b := make([]byte, 8)
	_, _ = f.ioctl(f.fd, request, b)
	return binary.NativeEndian.Uint64(b)
}

// sizes returns the size of an open disk and the size of one logical block, in bytes.
func (f *diskFile) sizes() (size, block int64) {
	b := make([]byte, 4) // an int, which the kernel only copies too
	_, _ = f.ioctl(f.fd, unix.BLKSSZGET, b)
	return int64(f.number(unix.BLKGETSIZE64)), int64(binary.NativeEndian.Uint32(b))
}

// flush writes back a disk's page cache and the drive's own cache (blkdev_fsync, block/fops.c). flush then drops the page cache,
// so that the next read returns data from the disk itself.
func (f *diskFile) flush() error {
	if err := f.fsync(f.fd); err != nil {
		return errorf(Failed, "flush the cache of %s: %w", f.Name(), err)
	}
	if _, err := f.ioctl(f.fd, unix.BLKFLSBUF, nil); err != nil {
		return errorf(Failed, "flush the page cache of %s: %w", f.Name(), err)
	}
	return nil
}

// udevLockLimit is how long the helper waits for another process to release its lock on a disk. udev locks a disk only while it
// inspects the disk.
const udevLockLimit = 5 * time.Second

// lock prevents udev from inspecting a disk until the disk is closed. lock fails if another tool keeps the disk locked
// (systemd.io/BLOCK_DEVICE_LOCKING). The parameter "how" is LOCK_SH or LOCK_EX. To read a disk, the helper uses LOCK_SH, which
// several processes can have at the same time.
func (f *diskFile) lock(ctx context.Context, how int) error {
	if waitForLock(ctx, f.flock, f.fd, how, udevLockLimit) != nil {
		return errorf(Busy, "%s is locked by another process", f.Name())
	}
	return nil
}

func releaseAll(held []*diskFile) {
	for _, f := range held {
		f.release()
	}
}
