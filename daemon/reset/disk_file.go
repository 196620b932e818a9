// SPDX-License-Identifier: Apache-2.0

package reset

// The functions in this file open a disk exclusively (O_EXCL), so that the kernel refuses to mount the disk or to make it part of
// another device. This package calls a disk that is open in this way "held".

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
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
// hold opens the twins too. The parameter "except" lists twins that the caller opens itself, so hold skips them.
func (h *host) hold(sysPath string, flags int, except ...string) (f *diskFile, err error) {
	if f, err = h.openDisk(sysPath, flags|unix.O_EXCL); err != nil {
		if d, gone := h.diskAt(sysPath); gone == nil { // the errno does not show what uses the disk
			err = cmp.Or(h.checkUnused(d), err)
		}
		return nil, err
	}
	err = h.checkUnused(f.Disk)
	for _, twin := range f.Twins {
		if err != nil || slices.Contains(except, twin) {
			continue
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
	if f.seq, err = f.checkDiskseq(f.fd, sysPath); err != nil {
		return err
	}
	if f.Disk, err = f.diskAt(sysPath); err != nil {
		return err
	}
	f.sysPath = sysPath
	if f.size, f.block, err = f.sizes(f.fd); err != nil {
		return commandError("get the size of "+f.Name(), err)
	}
	if f.size == 0 {
		return errorf(Gone, "%s has no size, because its driver has disabled the disk or the disk is being formatted", f.Name())
	}
	return nil
}

// checkDiskseq checks that an open disk has the diskseq that sysfs shows, and returns this number. The kernel assigns a higher
// diskseq to each disk that appears, so the numbers differ if another disk has replaced the open disk.
func (h *host) checkDiskseq(fd int, sysPath string) (seq uint64, err error) {
	want := h.Uint(sysPath, "diskseq")
	seq, err = h.number(fd, unix.BLKGETDISKSEQ, 8)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
		return 0, nil // before Linux 5.15, only the device number can be checked
	case err != nil:
		return 0, errorf(Gone, "read the diskseq of %s: %w", sysPath, err)
	case seq != want:
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

// number runs an ioctl on an open disk and returns the number that the kernel reports. This number has 4 or 8 bytes.
func (h *host) number(fd int, request uintptr, size int) (uint64, error) {
	b := make([]byte, size)
	_, err := h.ioctl(fd, request, b)
	if size == 4 {
		return uint64(binary.NativeEndian.Uint32(b)), err
	}
	return binary.NativeEndian.Uint64(b), err
}

// sizes returns the size of an open disk and the size of one logical block, in bytes.
func (h *host) sizes(fd int) (size, block int64, err error) {
	all, err1 := h.number(fd, unix.BLKGETSIZE64, 8)
	one, err2 := h.number(fd, unix.BLKSSZGET, 4)
	return int64(all), int64(one), cmp.Or(err1, err2)
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
	err := waitForLock(ctx, f.flock, f.fd, how, udevLockLimit)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errorf(Busy, "%s is locked by another process", f.Name())
	} else if err != nil {
		return errorf(Failed, "lock %s: %w", f.Name(), err)
	}
	return nil
}

func releaseAll(held []*diskFile) {
	for _, f := range held {
		f.release()
	}
}
