// SPDX-License-Identifier: Apache-2.0

package reset

// Holding a disk so that no other process can begin to use it.

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

// ioctls of block devices (include/uapi/linux/fs.h).
const (
	blkRRPart     = 0x125f     // BLKRRPART reads the partition table again
	blkFlsBuf     = 0x1261     // BLKFLSBUF writes back and drops the cache
	blkSSZGet     = 0x1268     // BLKSSZGET gets the bytes of a logical block
	blkDiscard    = 0x1277     // BLKDISCARD
	blkSecDiscard = 0x127d     // BLKSECDISCARD
	blkZeroOut    = 0x127f     // BLKZEROOUT
	blkGetSize64  = 0x80081272 // BLKGETSIZE64
	blkGetDiskSeq = 0x80081280 // BLKGETDISKSEQ, since Linux 5.15
)

// claim is a disk that is open.
type claim struct {
	*host
	sysfs.Disk
	sysPath string
	fd      int
	twins   []int  // descriptors of other ways to the disk
	size    int64  // bytes
	block   int64  // bytes of a logical block
	seq     uint64 // diskseq, or 0 before Linux 5.15

	controller controller // as it has described itself, or nil
}

// hold opens a disk exclusively. Then no part of it is mounted, swapped to or part of another device, and none can become so
// (bd_may_claim in block/bdev.c). Only users in the kernel count for that. A process, or a virtual machine, that has just
// opened the node is not in the way. Flags are O_RDONLY or O_RDWR. udev inspects a disk again when a descriptor for writing is
// closed, so a look alone must not have one.
//
// The kernel claims a block device and knows nothing of another way to the disk, so that hold opens its twins too. Besides are
// the paths that the caller holds by themselves.
func (h *host) hold(sysPath string, flags int, besides ...string) (c *claim, err error) {
	if c, err = h.look(sysPath, flags|unix.O_EXCL); err != nil {
		if d, gone := h.diskAt(sysPath); gone == nil { // an exclusive open does not tell who uses the disk
			err = cmp.Or(h.unused(d), err)
		}
		return nil, err
	}
	err = h.unused(c.Disk)
	for _, twin := range c.Twins {
		if err != nil || slices.Contains(besides, twin) {
			continue
		}
		var fd int
		if fd, err = h.opened(twin, unix.O_RDONLY|unix.O_EXCL); err == nil {
			c.twins = append(c.twins, fd)
		}
	}
	if err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// look opens a disk, and makes sure that it is the one that sysfs tells of. To read, and not exclusively, that is in no one's
// way.
func (h *host) look(sysPath string, flags int) (*claim, error) {
	fd, err := h.opened(sysPath, flags)
	if err != nil {
		return nil, err
	}
	c := &claim{host: h, fd: fd}
	if err := c.inspect(sysPath); err != nil {
		h.close(fd)
		return nil, err
	}
	return c, nil
}

// claimedFor is how long the helper waits for a claim on a disk without another sign of use. Tools that make sure that a disk
// is free have a claim for a moment (blkdiscard, mkfs and wipefs, by O_EXCL). A process that has it for longer uses the disk.
const claimedFor = time.Second

// holdable returns why a disk could not be held now, or nil. It is held just for as long as that takes.
func (h *host) holdable(sysPath string) error {
	c, err := h.hold(sysPath, unix.O_RDONLY)
	if err == nil {
		c.release()
	}
	return err
}

func (c *claim) release() {
	for _, fd := range c.twins {
		c.close(fd)
	}
	c.close(c.fd)
}

// inspect makes sure that the disk that is open is the one that sysfs tells of.
func (c *claim) inspect(sysPath string) (err error) {
	if c.seq, err = c.sameAppearance(c.fd, sysPath); err != nil {
		return err
	}
	if c.Disk, err = c.diskAt(sysPath); err != nil {
		return err
	}
	c.sysPath = sysPath
	if c.size, c.block, err = c.sizes(c.fd); err != nil {
		return commandError("ask for the size of "+c.Name(), err)
	}
	if c.size == 0 {
		return errorf(Gone, "%s has no size: its driver has given it up, or it is being formatted", c.Name())
	}
	return nil
}

// sameAppearance compares the number of the open disk with that in sysfs. The kernel counts the number up with each disk that
// appears. A disk that took the place of another in between has another one. It returns that of the open disk.
func (h *host) sameAppearance(fd int, sysPath string) (seq uint64, err error) {
	want := h.Uint(sysPath, "diskseq")
	seq, err = h.number(fd, blkGetDiskSeq, 8)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
		return 0, nil // before Linux 5.15, where the device number has to do
	case err != nil:
		return 0, errorf(Gone, "ask %s for its number of appearance: %w", sysPath, err)
	case seq != want:
		return 0, otherDisk(sysPath, seq, want)
	}
	return seq, nil
}

func otherDisk(sysPath string, was, is uint64) error {
	return errorf(Gone, "another disk has taken the place of %s: its diskseq is %d, not %d", sysPath, is, was)
}

// same checks by its diskseq, 0 if that is not known, that the disk is the one that was open before. Its name and its number
// may be those of another disk by now.
func (c *claim) same(seq uint64) error {
	if seq != 0 && c.seq != seq {
		return otherDisk(c.sysPath, seq, c.seq)
	}
	return nil
}

// number asks an open disk for a number of 4 or 8 bytes.
func (h *host) number(fd int, request uintptr, size int) (uint64, error) {
	b := make([]byte, size)
	_, err := h.ioctl(fd, request, b)
	if size == 4 {
		return uint64(binary.NativeEndian.Uint32(b)), err
	}
	return binary.NativeEndian.Uint64(b), err
}

// sizes returns the bytes of an open disk, and of one of its logical blocks.
func (h *host) sizes(fd int) (size, block int64, err error) {
	all, err1 := h.number(fd, blkGetSize64, 8)
	one, err2 := h.number(fd, blkSSZGet, 4)
	return int64(all), int64(one), cmp.Or(err1, err2)
}

// flush writes back what is cached of a disk, also by the drive itself (blkdev_fsync, block/fops.c), and forgets it, so
// that what is read next comes from the disk.
func (c *claim) flush() error {
	if err := c.fsync(c.fd); err != nil {
		return errorf(Failed, "have %s write back what it caches: %w", c.Name(), err)
	}
	if _, err := c.ioctl(c.fd, blkFlsBuf, nil); err != nil {
		return errorf(Failed, "write back what is cached of %s: %w", c.Name(), err)
	}
	return nil
}

// lockedFor is how long the helper waits for a lock of another process on a disk. The lock of udev lasts as long as one look.
const lockedFor = 5 * time.Second

// lock keeps udev from looking at a disk until it is closed, and makes sure that no tool is at work on it that locks it
// (systemd.io/BLOCK_DEVICE_LOCKING). how is LOCK_SH for a look, which keeps no other look away, or LOCK_EX.
func (c *claim) lock(ctx context.Context, how int) error {
	err := c.flocked(ctx, c.fd, how, lockedFor)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errorf(Busy, "%s is locked by another process at work on it", c.Name())
	} else if err != nil {
		return errorf(Failed, "lock %s: %w", c.Name(), err)
	}
	return nil
}

// holdAll holds further disks.
func (h *host) holdAll(sysPaths []string) (held []*claim, err error) {
	slices.Sort(sysPaths)
	for _, p := range slices.Compact(sysPaths) {
		c, err := h.hold(p, unix.O_RDONLY, sysPaths...)
		if err != nil {
			releaseAll(held)
			return nil, err
		}
		held = append(held, c)
	}
	return held, nil
}

func releaseAll(held []*claim) {
	for _, c := range held {
		c.release()
	}
}
