// SPDX-License-Identifier: Apache-2.0

package reset

// This file erases disks. Before an erasure, the helper opens the disk exclusively and reads it. The helper also locks the disk,
// so that udev does not inspect it. After the erasure, the helper again reads the blocks that contained data.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// erasure is a method for erasing a disk that is open exclusively.
type erasure struct {
	promise promise
	// ready returns an error if the method cannot erase the disk, or would also erase other disks.
	ready func(c *claim) error
	// run erases the disk and returns a description of its work. The parameter "had" describes the data found before the erasure.
	run func(ctx context.Context, c *claim, had *evidence) (done string, err error)
}

// erasures returns all erase methods by name.
func erasures() map[string]erasure {
	always := func(*claim) error { return nil }
	return map[string]erasure{
		"discard":        {mustVanish, always, inChunks("discard", "discarded", discardChunk, unix.BLKDISCARD)},
		"secure-discard": {mustChange, always, inChunks("secure-discard", "securely discarded", discardChunk, unix.BLKSECDISCARD)},
		"zero":           {mustBeZero, always, inChunks("zero", "wrote zeroes over", zeroChunk, unix.BLKZEROOUT)},
		"format":         formatBy(eraseUserData),
		"crypto-erase":   formatBy(eraseCrypto),
		"sanitize":       {mustChange, checkSanitize, sanitize},
	}
}

// Erasures returns the names of all erase methods. Most disks support only some of them.
func Erasures() []string { return slices.Sorted(maps.Keys(erasures())) }

// erase erases a disk that was examined earlier and returns a description of its work. erase opens the disk exclusively for
// writing and reads it again, because the disk may have changed since it was examined. For example, this process may have been
// stopped for a while, or the disk may have disappeared and reappeared during a reset.
func (t *task) erase(ctx context.Context, before string) (done string, err error) {
	c, err := t.hold(t.SysPath, unix.O_RDWR)
	if err != nil {
		return "", err
	}
	defer c.release()
	if err := t.selects(t.Request); err != nil { // the configuration may have changed too
		return "", err
	}
	if err := c.lock(ctx, unix.LOCK_EX); err != nil {
		return "", err
	}
	if err := c.flush(); err != nil { // otherwise the kernel would write the cache to the disk after the erasure
		return "", err
	}
	now, err := t.examineAgain(ctx, c, before)
	if err != nil {
		return "", err
	}
	t.answer.Appearance = appearanceOf(c.seq)
	e := erasures()[t.Scrub]
	if err := e.ready(c); err != nil { // refuse the request now rather than after an hour of reading
		return "", err
	}
	had, err := c.collectEvidence(ctx, e.promise, now)
	if err != nil {
		return "", err
	}
	if err := t.checkNotOpen(ctx, c); err != nil {
		return "", err
	}
	if err := c.flush(); err != nil { // the kernel counts data only when it writes the data from its cache to the disk
		return "", err
	}
	had.written = sysfs.Written(&t.Tree, c.sysPath)
	if err := t.checkBeforeErasure(c, e, had.written); err != nil {
		return "", err
	}
	t.step.set("erasing %s by %s", c.Name(), t.Scrub)
	began := time.Now()
	if done, err = e.run(ctx, c, had); err != nil {
		return "", err
	}
	seen, err := t.verifyErasure(ctx, c, had)
	switch {
	case err != nil && had.foreign: // metalplugd must not repeat the erasure, because it would erase the other process's data
		return done, errorf(Foreign, "another process wrote to %s during its erasure: %w", c.Name(), err)
	case err != nil:
		return done, err
	}
	t.answer.Written = had.written      // this number lets metalplugd notice later writes
	if time.Since(began) > closeLimit { // during a long erasure, a process may have opened the disk and written to it
		if err := t.checkNotOpen(ctx, c); err != nil {
			return done, errorf(Foreign, "another process may have written to %s since it was erased: %w", c.Name(), err)
		}
	}
	if err := c.forgetPartitions(); err != nil {
		return done, err
	}
	t.answer.Erased = true
	return done + "; " + seen, nil
}

// checkBeforeErasure makes the last checks before the erasure. No slow step may follow, because a process may open the disk after
// the check for open files. checkBeforeErasure checks for exports, loop devices and other hosts again, because the read took time.
// An exclusive open does not detect these uses. The parameter written is the number of sectors written so far.
func (t *task) checkBeforeErasure(c *claim, e erasure, written uint64) error {
	if err := c.checkWritten(t.Written, written); err != nil {
		return err
	}
	if err := e.ready(c); err != nil {
		return err
	}
	if err := t.checkUnused(c.Disk); err != nil {
		return err
	}
	if err := c.checkNotShared(); err != nil {
		return err
	}
	return t.checkIdentity(anyAppearance)
}

// examineAgain reads a disk again before its erasure. examineAgain checks that neither the disk nor its content has changed since
// the earlier examination. examineAgain does not return a surface if the disk was not read earlier or cannot be read.
func (t *task) examineAgain(ctx context.Context, c *claim, before string) (*surface, error) {
	switch err := c.checkSameDisk(t.seq); {
	case err != nil && t.Method != "":
		return nil, errorf(Failed, "%w: another medium may be in its place; erase the disk without a reset", err)
	case err != nil:
		return nil, err
	}
	if err := t.checkIdentity(); err != nil {
		return nil, err
	}
	if before == "" || t.Scrub == "sanitize" && c.isUnreadable() {
		return nil, nil
	}
	s, err := c.surfaceOf(ctx, seedIn(before))
	if err == nil && s.fingerprint() != before {
		err = errorf(Foreign, "a process wrote to %s while it was checked", c.Name())
	}
	return s, err
}

// verifyErasure waits until an erased disk is present again. verifyErasure checks that it is still the same disk, and that the
// erase method has kept its promise about the blocks' content. verifyErasure returns a description of the blocks that it has
// read.
func (t *task) verifyErasure(ctx context.Context, c *claim, had *evidence) (seen string, err error) {
	if err := t.awaitReturn(ctx); err != nil {
		return "", err
	}
	if err := c.checkSize(); err != nil {
		return "", err
	}
	if _, err := t.checkDiskseq(c.fd, c.sysPath); err != nil {
		return "", errorf(Failed, "the erasure of %s cannot be verified: %w", c.Name(), err)
	}
	s, err := c.verify(ctx, had)
	if err == nil && had.random > 0 {
		t.answer.Fingerprint = s.fingerprint()
	}
	return had.describe(), err
}

// forgetPartitions makes the kernel drop an erased disk's partitions, because the kernel does not do so automatically.
func (c *claim) forgetPartitions() error {
	if len(c.Partitions(c.sysPath)) == 0 {
		return nil
	}
	if _, err := c.ioctl(c.fd, unix.BLKRRPART, nil); err != nil {
		return errorf(Failed, "read the partition table of %s again: %w", c.Name(), err)
	}
	return nil
}

// These constants are the numbers of bytes that one ioctl erases. Between two ioctls, the helper checks the time limit, and a
// signal can end the program.
const (
	discardChunk = 1 << 30
	zeroChunk    = 64 << 20 // this takes a tenth of a second if the drive really writes zeroes
)

// inChunks returns a function that erases a disk by running an ioctl for each chunk. A device may ignore the parts of a range
// that are smaller than its discard granularity (Documentation/ABI/stable/sysfs-block, queue/discard_granularity, in bytes). Each
// range therefore begins one granule before the end of the previous range. In this way, each granule lies completely within one
// range.
func inChunks(name, did string, chunk int64, request uintptr) func(context.Context, *claim, *evidence) (string, error) {
	return func(ctx context.Context, c *claim, had *evidence) (string, error) {
		began := time.Now()
		granule := int64(c.Uint(c.sysPath, "queue/discard_granularity"))
		chunk := max(chunk, granule)
		for from := int64(0); from < c.size; from += chunk {
			if ctx.Err() != nil {
				return "", errorf(Failed, "%s on %s: %d of %d bytes in %v: allow more time", name, c.Name(), from, c.size, time.Since(began).Round(time.Second))
			}
			start := max(0, from-granule)
			had.written += uint64(min(from+chunk, c.size)-start) / 512
			b := binary.NativeEndian.AppendUint64(nil, uint64(start)) // uint64_t range[2]
			_, err := c.ioctl(c.fd, request, binary.NativeEndian.AppendUint64(b, uint64(min(from+chunk, c.size)-start)))
			switch {
			case err == nil:
			case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
				return "", errorf(Unsupported, "%s on %s: %w", name, c.Name(), err)
			default:
				return "", commandError(fmt.Sprintf("%s on %s at byte %d", name, c.Name(), from), err)
			}
		}
		return fmt.Sprintf("%s %d bytes", did, c.size), nil
	}
}
