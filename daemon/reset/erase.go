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
	ready func(f *diskFile) error
	// run erases the disk and returns a description of its work. The parameter v describes the data found before the erasure.
	run func(ctx context.Context, f *diskFile, v *verification) (done string, err error)
}

// erasures returns all erase methods by name.
func erasures() map[string]erasure {
	always := func(*diskFile) error { return nil }
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
	f, err := t.hold(t.SysPath, unix.O_RDWR)
	if err != nil {
		return "", err
	}
	defer f.release()
	if err := t.selects(t.Request); err != nil { // the configuration may have changed too
		return "", err
	}
	if err := f.lock(ctx, unix.LOCK_EX); err != nil {
		return "", err
	}
	if err := f.flush(); err != nil { // otherwise the kernel would write the cache to the disk after the erasure
		return "", err
	}
	now, err := t.examineAgain(ctx, f, before)
	if err != nil {
		return "", err
	}
	t.answer.Appearance = appearanceOf(f.seq)
	e := erasures()[t.Scrub]
	if err := e.ready(f); err != nil { // refuse the request now rather than after an hour of reading
		return "", err
	}
	v, err := f.recordContent(ctx, e.promise, now)
	if err != nil {
		return "", err
	}
	if err := t.checkNotOpen(ctx, f); err != nil {
		return "", err
	}
	if err := f.flush(); err != nil { // the kernel counts data only when it writes the data from its cache to the disk
		return "", err
	}
	v.written = sysfs.Written(&t.Tree, f.sysPath)
	if err := t.checkBeforeErasure(f, e, v.written); err != nil {
		return "", err
	}
	t.step.set("erasing %s by %s", f.Name(), t.Scrub)
	began := time.Now()
	if done, err = e.run(ctx, f, v); err != nil {
		return "", err
	}
	seen, err := t.verifyErasure(ctx, f, v)
	switch {
	case err != nil && v.foreign: // metalplugd must not repeat the erasure, because it would erase the other process's data
		return done, errorf(Foreign, "another process wrote to %s during its erasure: %w", f.Name(), err)
	case err != nil:
		return done, err
	}
	t.answer.Written = v.written        // this number lets metalplugd notice later writes
	if time.Since(began) > closeLimit { // during a long erasure, a process may have opened the disk and written to it
		if err := t.checkNotOpen(ctx, f); err != nil {
			return done, errorf(Foreign, "another process may have written to %s since it was erased: %w", f.Name(), err)
		}
	}
	if err := f.forgetPartitions(); err != nil {
		return done, err
	}
	t.answer.Erased = true
	return done + "; " + seen, nil
}

// checkBeforeErasure makes the last checks before the erasure. No slow step may follow, because a process may open the disk after
// the check for open files. checkBeforeErasure checks for exports, loop devices and other hosts again, because the read took time.
// An exclusive open does not detect these uses. The parameter written is the number of sectors written so far.
func (t *task) checkBeforeErasure(f *diskFile, e erasure, written uint64) error {
	if err := f.checkWritten(t.Written, written); err != nil {
		return err
	}
	if err := e.ready(f); err != nil {
		return err
	}
	if err := t.checkUnused(f.Disk); err != nil {
		return err
	}
	if err := f.checkNotShared(); err != nil {
		return err
	}
	return t.checkIdentity(anyAppearance)
}

// examineAgain reads a disk again before its erasure. examineAgain checks that neither the disk nor its content has changed since
// the earlier examination. examineAgain does not return a surface if the disk was not read earlier.
func (t *task) examineAgain(ctx context.Context, f *diskFile, before string) (*surface, error) {
	switch err := f.checkSameDisk(t.seq); {
	case err != nil && t.Method != "":
		return nil, errorf(Failed, "%w: another medium may be in its place; erase the disk without a reset", err)
	case err != nil:
		return nil, err
	}
	if err := t.checkIdentity(); err != nil {
		return nil, err
	}
	if before == "" {
		return nil, nil
	}
	s, err := f.surfaceOf(ctx, seedIn(before))
	if err == nil && s.fingerprint() != before {
		err = errorf(Foreign, "a process wrote to %s while it was checked", f.Name())
	}
	return s, err
}

// verifyErasure waits until an erased disk is present again. verifyErasure checks that it is still the same disk, and that the
// erase method has kept its promise about the blocks' content. verifyErasure returns a description of the blocks that it has
// read.
func (t *task) verifyErasure(ctx context.Context, f *diskFile, v *verification) (seen string, err error) {
	if err := t.awaitReturn(ctx); err != nil {
		return "", err
	}
	if err := f.checkSize(); err != nil {
		return "", err
	}
	if seq := t.Uint(f.sysPath, "diskseq"); seq != f.seq {
		return "", errorf(Failed, "the erasure of %s cannot be verified: %w", f.Name(), otherDisk(f.sysPath, f.seq, seq))
	}
	s, err := f.verify(ctx, v)
	if err == nil && v.random > 0 {
		t.answer.Fingerprint = s.fingerprint()
	}
	return v.describe(), err
}

// forgetPartitions makes the kernel drop an erased disk's partitions, because the kernel does not do so automatically.
func (f *diskFile) forgetPartitions() error {
	if len(f.Partitions(f.sysPath)) == 0 {
		return nil
	}
	if _, err := f.ioctl(f.fd, unix.BLKRRPART, nil); err != nil {
		return errorf(Failed, "read the partition table of %s again: %w", f.Name(), err)
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
func inChunks(name, did string, chunk int64, request uintptr) func(context.Context, *diskFile, *verification) (string, error) {
	return func(ctx context.Context, f *diskFile, v *verification) (string, error) {
		began := time.Now()
		granule := int64(f.Uint(f.sysPath, "queue/discard_granularity"))
		chunk := max(chunk, granule)
		for from := int64(0); from < f.size; from += chunk {
			if ctx.Err() != nil {
				return "", errorf(Failed, "%s on %s: %d of %d bytes in %v: allow more time", name, f.Name(), from, f.size, time.Since(began).Round(time.Second))
			}
			start := max(0, from-granule)
			v.written += uint64(min(from+chunk, f.size)-start) / 512
			b := binary.NativeEndian.AppendUint64(nil, uint64(start)) // uint64_t range[2]
			_, err := f.ioctl(f.fd, request, binary.NativeEndian.AppendUint64(b, uint64(min(from+chunk, f.size)-start)))
			switch {
			case err == nil:
			case errors.Is(err, unix.EOPNOTSUPP):
				return "", errorf(Unsupported, "%s on %s: %w", name, f.Name(), err)
			default:
				return "", commandError(fmt.Sprintf("%s on %s at byte %d", name, f.Name(), from), err)
			}
		}
		return fmt.Sprintf("%s %d bytes", did, f.size), nil
	}
}
