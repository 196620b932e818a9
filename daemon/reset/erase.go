// SPDX-License-Identifier: Apache-2.0

package reset

// Making what is on a disk unreadable. Each method holds the disk exclusively and locks it against udev before it writes. It
// reads the disk again then, and afterwards in the places that held something.

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// erasure is one method on a disk that is held.
type erasure struct {
	promise promise
	// ready refuses a disk that the method cannot erase, or not alone.
	ready func(c *claim) error
	// run erases the disk and returns what it did, in words. had is what was found there before.
	run func(ctx context.Context, c *claim, had *evidence) (done string, err error)
}

// erasures returns all methods by their names.
func erasures() map[string]erasure {
	always := func(*claim) error { return nil }
	return map[string]erasure{
		"discard":        {mustVanish, always, inChunks("discard", "discarded", discardChunk, blkDiscard)},
		"secure-discard": {mustChange, always, inChunks("secure-discard", "securely discarded", discardChunk, blkSecDiscard)},
		"zero":           {mustBeZero, always, inChunks("zero", "wrote zeroes over", zeroChunk, blkZeroOut)},
		"format":         formatBy(eraseUserData),
		"crypto-erase":   formatBy(eraseCrypto),
		"sanitize":       {mustChange, sanitizable, sanitize},
	}
}

// Erasures are the names of the methods by which a disk is erased, where it can be by that.
func Erasures() []string { return slices.Sorted(maps.Keys(erasures())) }

// erase erases a disk that was examined before, and returns what it did. It holds the disk, open to write now, and reads it
// again. In between this process may have been stopped, and a reset may have made the disk appear again.
func (t *task) erase(ctx context.Context, before string) (done string, err error) {
	c, err := t.hold(t.SysPath, unix.O_RDWR)
	if err != nil {
		return "", err
	}
	defer c.release()
	if err := c.lock(ctx, unix.LOCK_EX); err != nil {
		return "", err
	}
	if err := c.flush(); err != nil { // or what is cached would be written later
		return "", err
	}
	now, err := t.examined(ctx, c, before)
	if err != nil {
		return "", err
	}
	t.answer.Appearance = appearanceOf(c.seq)
	e := erasures()[t.Scrub]
	if err := e.ready(c); err != nil { // before the disk is read for an hour
		return "", err
	}
	had, err := c.written(ctx, e.promise, now)
	if err != nil {
		return "", err
	}
	if err := t.unheld(ctx, c); err != nil {
		return "", err
	}
	// The answer about processes ages from here on. Nothing below takes longer than the drive needs to describe itself. An
	// export, a loop device or another host claims nothing, and reading the disk has taken its time.
	if err := cmp.Or(e.ready(c), t.unused(c.Disk), c.shared(), t.identified(anyAppearance)); err != nil {
		return "", err
	}
	t.step.is("erasing %s by %s", c.Name(), t.Scrub)
	began := time.Now()
	if done, err = e.run(ctx, c, had); err != nil {
		return "", err
	}
	seen, err := t.verified(ctx, c, had)
	if err != nil {
		return done, err
	}
	if time.Since(began) > passingFor { // a process may have opened it meanwhile, and written behind the erasure
		if err := t.unheld(ctx, c); err != nil {
			return done, err
		}
	}
	if err := c.forgetPartitions(); err != nil {
		return done, err
	}
	t.answer.Erased = true
	return done + "; " + seen, nil
}

// examined reads a disk again while it is held to be erased. It must be the one that was examined before, also after a reset,
// and hold the same. It returns nil for a disk that cannot be read.
func (t *task) examined(ctx context.Context, c *claim, before string) (*surface, error) {
	switch err := c.same(t.seq); {
	case err != nil && t.Method != "":
		return nil, errorf(Failed, "%w: another medium may be in its place; erase the disk without a reset", err)
	case err != nil:
		return nil, err
	}
	if err := t.identified(); err != nil {
		return nil, err
	}
	if before == "" || c.withheld(t.Scrub) {
		return nil, nil
	}
	s, err := c.surfaceOf(ctx, seedIn(before))
	if err == nil && s.fingerprint() != before {
		err = errorf(Foreign, "%s was written to while it was examined: another process uses it", c.Name())
	}
	return s, err
}

// verified waits until an erased disk is back, and makes sure that it is the same and keeps the promise. It describes how the
// disk reads.
func (t *task) verified(ctx context.Context, c *claim, had *evidence) (seen string, err error) {
	if err := cmp.Or(t.back(ctx), c.sameSize()); err != nil {
		return "", err
	}
	if _, err := t.sameAppearance(c.fd, c.sysPath); err != nil {
		return "", errorf(Failed, "the erasure of %s cannot be verified: %w", c.Name(), err)
	}
	s, err := c.verify(ctx, had)
	if err == nil && had.noise > 0 {
		t.answer.Fingerprint = s.fingerprint()
	}
	return had.inWords(), err
}

// forgetPartitions makes the kernel see that there are no partitions any more. The kernel does not look by itself.
func (c *claim) forgetPartitions() error {
	if len(c.Partitions(c.sysPath)) == 0 {
		return nil
	}
	if _, err := c.ioctl(c.fd, blkRRPart, nil); err != nil {
		return errorf(Failed, "read the partition table of %s again: %w", c.Name(), err)
	}
	return nil
}

// Bytes that one ioctl is about. Between two of them the time is looked at, and a signal ends the program.
const (
	discardChunk = 1 << 30
	zeroChunk    = 64 << 20 // a tenth of a second where zeroes are really written
)

// inChunks makes an ioctl on all of a disk, piece by piece.
func inChunks(name, did string, chunk int64, request uintptr) func(context.Context, *claim, *evidence) (string, error) {
	return func(ctx context.Context, c *claim, _ *evidence) (string, error) {
		began := time.Now()
		for from := int64(0); from < c.size; from += chunk {
			if ctx.Err() != nil {
				return "", errorf(Failed, "%s on %s: %d of %d bytes in %v: allow more time", name, c.Name(), from, c.size, time.Since(began).Round(time.Second))
			}
			err := c.ranged(request, from, min(chunk, c.size-from))
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

// ranged makes an ioctl with uint64_t range[2].
func (c *claim) ranged(request uintptr, from, length int64) error {
	b := binary.NativeEndian.AppendUint64(nil, uint64(from))
	_, err := c.ioctl(c.fd, request, binary.NativeEndian.AppendUint64(b, uint64(length)))
	return err
}
