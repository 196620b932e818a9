// SPDX-License-Identifier: Apache-2.0

package reset

// Making what is on a disk unreadable. Whatever the method, the disk is held exclusively and locked against udev before
// anything is written, read again then, and read afterwards where it held something.

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
	// ready refuses a disk that the method cannot erase, or not alone; nil: there is none.
	ready func(c *claim) error
	// run erases the disk and returns what it did, in words. had is what was found there before.
	run func(ctx context.Context, r Request, c *claim, had prints) (done string, err error)
}

// everyErasure is all methods by their names.
func (h *host) everyErasure() map[string]erasure {
	return map[string]erasure{
		"discard":        {mustVanish, nil, h.inChunks("discarded", discardChunk, blkDiscard)},
		"secure-discard": {mustChange, nil, h.inChunks("securely discarded", discardChunk, blkSecDiscard)},
		"zero":           {mustBeZero, nil, h.inChunks("wrote zeroes over", zeroChunk, blkZeroOut)},
		"format":         h.formatBy(eraseUserData),
		"crypto-erase":   h.formatBy(eraseCrypto),
		"sanitize":       {mustChange, h.sanitizable, h.sanitize},
	}
}

// Erasures are the names of the methods by which a disk is erased, where it can be by that.
func Erasures() []string { return slices.Sorted(maps.Keys((&host{}).everyErasure())) }

// erase erases a disk that was examined before, and returns what it did. It holds the disk, open to write now, and reads it
// again: in between this process may have been stopped, and a reset may have made the disk appear anew.
func (h *host) erase(ctx context.Context, r Request, before state, a *Answer) (done string, err error) {
	c, err := h.hold(r.SysPath, readWrite)
	if err != nil {
		return "", err
	}
	defer h.release(c)
	if err := h.lock(ctx, c, exclusive); err != nil {
		return "", err
	}
	if err := h.flush(c); err != nil { // or what is cached would be written later
		return "", err
	}
	now, err := h.examined(ctx, r, c, before)
	if err != nil {
		return "", err
	}
	a.Appearance = appearanceOf(c.seq)
	e := h.everyErasure()[r.Scrub]
	if err := h.can(e, c); err != nil { // before the disk is read for an hour
		return "", err
	}
	had, err := h.written(ctx, c, now)
	if err != nil {
		return "", err
	}
	if err := h.unheld(ctx, r, c); err != nil {
		return "", err
	}
	// The answer about processes ages from here on: nothing below takes longer than the drive needs to describe itself.
	if err := cmp.Or(h.can(e, c), h.free(c), h.identified(r.anyAppearance())); err != nil {
		return "", err
	}
	h.step.is("erasing %s by %s", c.name(), r.Scrub)
	began := time.Now()
	done, err = e.run(ctx, r, c, had)
	if err != nil {
		return "", err
	}
	if err := cmp.Or(h.back(ctx, r), h.sameSize(c)); err != nil {
		return done, err
	}
	if _, err := h.sameAppearance(c.fd, c.sysPath); err != nil {
		return done, errorf(Failed, "the erasure of %s cannot be verified: %w", c.name(), err)
	}
	seen, err := h.verify(ctx, c, e.promise, had, a)
	if err != nil {
		return done, err
	}
	if time.Since(began) > passingFor { // a process may have opened it meanwhile, and written behind the erasure
		if err := h.unheld(ctx, r, c); err != nil {
			return done, err
		}
	}
	if err := h.forgetPartitions(c); err != nil {
		return done, err
	}
	a.Erased = true
	return done + "; " + seen, nil
}

// can returns why a disk cannot be erased by a method, or not alone.
func (h *host) can(e erasure, c *claim) error {
	if e.ready == nil {
		return nil
	}
	return e.ready(c)
}

// examined reads a disk again while it is held to be erased. It must be the one that was examined before, also after a reset,
// and hold the same. Nil: it cannot be read.
func (h *host) examined(ctx context.Context, r Request, c *claim, before state) (*surface, error) {
	switch err := r.sameDisk(c); {
	case err != nil && r.Method != "":
		return nil, errorf(Failed, "%w: another medium may be in its place; erase the disk without a reset", err)
	case err != nil:
		return nil, err
	}
	if err := h.identified(r); err != nil {
		return nil, err
	}
	if before.unread || h.withheld(r, c) {
		return nil, nil
	}
	s, err := h.surfaceOf(ctx, c, before.print.seed)
	if err == nil && s.fingerprint() != before.print {
		err = errorf(Foreign, "%s was written to while it was examined: another process uses it", c.name())
	}
	return s, err
}

// forgetPartitions makes the kernel see that there are no partitions any more: it does not look by itself.
func (h *host) forgetPartitions(c *claim) error {
	if len(c.partitions) == 0 {
		return nil
	}
	if _, err := h.ioctl(c.fd, blkRRPart, 0); err != nil {
		return errorf(Failed, "read the partition table of %s again: %w", c.name(), err)
	}
	return nil
}

// Bytes that one ioctl is about. Between two of them the time is looked at, and a signal ends the program.
const (
	discardChunk = 1 << 30
	zeroChunk    = 64 << 20 // a tenth of a second where zeroes are really written
)

// inChunks makes an ioctl on all of a disk, piece by piece.
func (h *host) inChunks(what string, chunk int64, request uintptr) func(context.Context, Request, *claim, prints) (string, error) {
	return func(ctx context.Context, r Request, c *claim, _ prints) (string, error) {
		began := time.Now()
		for from := int64(0); from < c.size; from += chunk {
			if ctx.Err() != nil {
				return "", errorf(Failed, "%s on %s: %d of %d bytes in %v: allow more time", r.Scrub, c.name(), from, c.size, time.Since(began).Round(time.Second))
			}
			err := h.ranged(c.fd, request, from, min(chunk, c.size-from))
			switch {
			case err == nil:
			case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
				return "", errorf(Unsupported, "%s on %s: %w", r.Scrub, c.name(), err)
			default:
				return "", commandError(fmt.Sprintf("%s on %s at byte %d", r.Scrub, c.name(), from), err)
			}
		}
		return fmt.Sprintf("%s %d bytes", what, c.size), nil
	}
}

// ranged makes an ioctl with uint64_t range[2].
func (h *host) ranged(fd int, request uintptr, from, length int64) error {
	b := binary.NativeEndian.AppendUint64(nil, uint64(from))
	_, err := h.ioctlOn(fd, request, binary.NativeEndian.AppendUint64(b, uint64(length)))
	return err
}
