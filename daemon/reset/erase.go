// SPDX-License-Identifier: Apache-2.0

package reset

// Making what is on a disk unreadable. Each method holds the disk exclusively and locks it against udev before it writes. It
// reads the disk again then, and afterwards in the places that held something.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
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
	run func(ctx context.Context, r Request, c *claim, had *evidence) (done string, err error)
}

// erasures returns all methods by their names.
func erasures() map[string]erasure {
	always := func(*claim) error { return nil }
	return map[string]erasure{
		"discard":        {mustVanish, always, inChunks("discarded", discardChunk, blkDiscard)},
		"secure-discard": {mustChange, always, inChunks("securely discarded", discardChunk, blkSecDiscard)},
		"zero":           {mustBeZero, always, inChunks("wrote zeroes over", zeroChunk, blkZeroOut)},
		"format":         formatBy(eraseUserData),
		"crypto-erase":   formatBy(eraseCrypto),
		"sanitize": {mustChange, (*claim).sanitizable, func(ctx context.Context, r Request, c *claim, had *evidence) (string, error) {
			return c.sanitize(ctx, r, had)
		}},
	}
}

// Erasures are the names of the methods by which a disk is erased, where it can be by that.
func Erasures() []string { return slices.Sorted(maps.Keys(erasures())) }

// erase erases a disk that was examined before, and returns what it did. It holds the disk, open to write now, and reads it
// again. In between this process may have been stopped, and a reset may have made the disk appear again.
func (h *host) erase(ctx context.Context, r Request, before string, a *Answer) (done string, err error) {
	c, err := h.hold(r.SysPath, readWrite)
	if err != nil {
		return "", err
	}
	defer c.release()
	if err := c.lock(ctx, exclusive); err != nil {
		return "", err
	}
	if err := c.flush(); err != nil { // or what is cached would be written later
		return "", err
	}
	now, err := c.examined(ctx, r, before)
	if err != nil {
		return "", err
	}
	a.Appearance = appearanceOf(c.seq)
	e := erasures()[r.Scrub]
	if err := e.ready(c); err != nil { // before the disk is read for an hour
		return "", err
	}
	had, err := c.written(ctx, e.promise, now)
	if err != nil {
		return "", err
	}
	if err := c.unheld(ctx, r); err != nil {
		return "", err
	}
	// The answer about processes ages from here on. Nothing below takes longer than the drive needs to describe itself.
	if err := cmp.Or(e.ready(c), c.free(), h.identified(r.anyAppearance())); err != nil {
		return "", err
	}
	h.step.is("erasing %s by %s", c.name(), r.Scrub)
	began := time.Now()
	done, err = e.run(ctx, r, c, had)
	if err != nil {
		return "", err
	}
	if err := cmp.Or(h.back(ctx, r), c.sameSize()); err != nil {
		return done, err
	}
	if _, err := h.sameAppearance(c.fd, c.sysPath); err != nil {
		return done, errorf(Failed, "the erasure of %s cannot be verified: %w", c.name(), err)
	}
	seen, err := c.verify(ctx, had, a)
	if err != nil {
		return done, err
	}
	if time.Since(began) > passingFor { // a process may have opened it meanwhile, and written behind the erasure
		if err := c.unheld(ctx, r); err != nil {
			return done, err
		}
	}
	if err := c.forgetPartitions(); err != nil {
		return done, err
	}
	a.Erased = true
	return done + "; " + seen, nil
}

// examined reads a disk again while it is held to be erased. It must be the one that was examined before, also after a reset,
// and hold the same. It returns nil for a disk that cannot be read.
func (c *claim) examined(ctx context.Context, r Request, before string) (*surface, error) {
	switch err := r.sameDisk(c); {
	case err != nil && r.Method != "":
		return nil, errorf(Failed, "%w: another medium may be in its place; erase the disk without a reset", err)
	case err != nil:
		return nil, err
	}
	if err := c.identified(r); err != nil {
		return nil, err
	}
	if before == "" || c.withheld(r) {
		return nil, nil
	}
	s, err := c.surfaceOf(ctx, seedIn(before))
	if err == nil && s.fingerprint() != before {
		err = errorf(Foreign, "%s was written to while it was examined: another process uses it", c.name())
	}
	return s, err
}

// forgetPartitions makes the kernel see that there are no partitions any more. The kernel does not look by itself.
func (c *claim) forgetPartitions() error {
	if len(c.partitions) == 0 {
		return nil
	}
	if _, err := c.ioctl(c.fd, blkRRPart, nil); err != nil {
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
func inChunks(what string, chunk int64, request uintptr) func(context.Context, Request, *claim, *evidence) (string, error) {
	return func(ctx context.Context, r Request, c *claim, _ *evidence) (string, error) {
		began := time.Now()
		for from := int64(0); from < c.size; from += chunk {
			if ctx.Err() != nil {
				return "", errorf(Failed, "%s on %s: %d of %d bytes in %v: allow more time", r.Scrub, c.name(), from, c.size, time.Since(began).Round(time.Second))
			}
			err := c.ranged(request, from, min(chunk, c.size-from))
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
func (c *claim) ranged(request uintptr, from, length int64) error {
	b := binary.NativeEndian.AppendUint64(nil, uint64(from))
	_, err := c.ioctl(c.fd, request, binary.NativeEndian.AppendUint64(b, uint64(length)))
	return err
}

// An erasure is verified by reading what was written before it. A drive may acknowledge Deallocate and keep the data (NVM
// Command Set Specification 1.0, 3.2.3). The host cannot tell, so that places which were blank before prove nothing.

// promise is what a disk has to read as after an erasure.
type promise int

const (
	mustBeZero promise = iota
	// mustVanish is for a disk that must read as 00, or as ff. A discard is a hint that a disk may ignore, in parts even.
	mustVanish
	// mustChange allows noise too. After its key has changed, a block reads as other data (NVMe Base Specification 2.0, 8.21).
	mustChange
)

// enough is in how many parts of a disk data must be known to be, to prove by them that it was erased.
const enough = 16

// evidence is blocks of a disk that held something before an erasure, by their place, and how the blocks read that were read
// back after it.
type evidence struct {
	must  promise
	known bool // whether the disk could be read before, else nothing is known of any block
	seed  maphash.Seed
	at    map[int64]uint64 // hashes, 0 of a block that could not be read

	noise, other int
	zeroes       int
	unknown      int64 // where a block holds something of which nothing is known, or -1
	bad          error
}

// add notes a block, which is nil if it cannot be read.
func (e *evidence) add(at int64, b []byte) {
	if e.at[at] = 0; b != nil {
		e.at[at] = maphash.Bytes(e.seed, b)
	}
}

// written finds places that hold something, or that cannot be read, in the quick check s and then, where that has found few,
// by reading the disk. It holds no more than the ends of what it finds in each part. s is nil where a sanitize keeps the
// disk from being read.
func (c *claim) written(ctx context.Context, must promise, s *surface) (*evidence, error) {
	e := &evidence{must: must, known: s != nil, seed: maphash.MakeSeed(), at: make(map[int64]uint64), unknown: -1}
	if s == nil {
		return e, nil
	}
	part, parts := int64(-1), 0
	for at, b := range s.filled() {
		e.add(at, b)
		if at/stretch != part {
			part = at / stretch
			parts++
		}
	}
	if parts >= enough {
		return e, nil
	}
	parts = 0
	filler := s.filler()
	err := c.readUntil(ctx, "what to verify its erasure by", func(one chunk) bool {
		first, last := one.filled(filler)
		if first < 0 {
			return false
		}
		for at, b := range one.blocks() {
			if at == first || at == last {
				e.add(at, b)
			}
		}
		parts++
		return parts >= enough
	})
	return e, err
}

// verify reads the disk itself, not what is cached of it, and describes how it reads. It reads the places that held something,
// the ends and new random places. It reads all of the disk where nothing is known of what it held. A disk that does not keep
// the promise is [Failed].
func (c *claim) verify(ctx context.Context, e *evidence, a *Answer) (seen string, err error) {
	if err := c.flush(); err != nil {
		return "", err
	}
	each := func(one chunk) bool {
		for at, b := range one.blocks() {
			e.block(at, b)
		}
		return e.bad != nil
	}
	c.step.is("reading %s back", c.name())
	held := make([]chunk, 0, len(e.at))
	for _, at := range slices.Sorted(maps.Keys(e.at)) {
		held = append(held, chunk{at: at, b: make([]byte, min(blockSize, c.size-at))})
	}
	if err := together(ctx, held, c.reading()); err != nil {
		return "", err
	}
	for _, one := range held {
		each(one)
	}
	s, err := c.surfaceOf(ctx, c.newSeed(c.sysPath))
	if err != nil {
		return "", err
	}
	for at, b := range s.blocks() {
		if _, done := e.at[at]; !done {
			e.block(at, b)
		}
	}
	if !e.known && e.bad == nil {
		if err := c.readUntil(ctx, "that nothing is left there", each); err != nil {
			return "", err
		}
	}
	if err := e.verdict(); err != nil {
		return "", errorf(Failed, "verify %s: %w", c.name(), err)
	}
	if e.noise > 0 {
		a.Fingerprint = s.fingerprint()
	}
	return e.inWords(), nil
}

// block judges a block that was read back.
func (e *evidence) block(at int64, b []byte) {
	before, held := e.at[at]
	switch {
	case e.bad != nil:
	case b == nil:
		e.bad = fmt.Errorf("byte %d cannot be read: an erased block must be readable; replace the drive", at)
	case bytes.Count(b, []byte{0}) == len(b):
		e.zeroes++
	case e.must == mustBeZero:
		e.bad = fmt.Errorf("byte %d and after are not zeroes", at)
	case blank(b):
		e.other++
	case e.must == mustVanish:
		e.bad = fmt.Errorf("there is data at byte %d still%s", at, keeps)
	case !e.known, held && before == 0:
		e.unknown = max(e.unknown, at)
	case held && before == maphash.Bytes(e.seed, b):
		e.bad = fmt.Errorf("at byte %d it reads as before", at)
	default:
		e.noise++
	}
}

// keeps is what a drive does whose erasure cannot be verified.
const keeps = `: this drive keeps data that is discarded; scrub = "zero" erases it`

// verdict returns why the erasure is not verified. A new key makes noise of a block. A block of which nothing is known counts
// as noise only where another one is proven to have changed. Blocks of ff among 00 may be data.
func (e *evidence) verdict() error {
	if e.bad == nil && e.zeroes > 0 && e.other > 0 {
		return fmt.Errorf("%d blocks read as ff among others that read as 00%s", e.other, keeps)
	}
	if e.bad == nil && e.unknown >= 0 && e.noise == 0 {
		return fmt.Errorf("at byte %d is data that could not be read before the erasure, and nothing tells the one from the other; erase the disk again", e.unknown)
	}
	return e.bad
}

// inWords describes how a disk reads.
func (e *evidence) inWords() string {
	had := fmt.Sprintf("%d blocks of %d bytes had held something", len(e.at), blockSize)
	switch {
	case !e.known:
		had = "it could not be read before"
	case len(e.at) == 0:
		had = "the disk was blank"
	}
	switch {
	case e.noise > 0:
		return fmt.Sprintf("%s, none reads as before, %d read as noise", had, e.noise)
	case e.other > 0:
		return had + ", all read as ff"
	}
	return had + ", all read as zeroes"
}
