// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// To verify an erasure, the helper again reads the blocks that contained data before the erasure. A drive may acknowledge
// Deallocate but keep the data (NVM Command Set Specification 1.0, 3.2.3). Blocks that were blank before the erasure cannot show
// whether the drive has kept data.

// promise is the content that a disk must have after an erasure.
type promise int

const (
	mustBeZero promise = iota
	// mustVanish means that each block must contain only 00 or only ff. Discarded data may remain, because a disk treats a
	// discard only as a hint, and may ignore it for parts of the range.
	mustVanish
	// mustChange means that blocks may also contain random data. After a key change, a drive returns different data for a block
	// (NVMe Base Specification 2.0, 8.21).
	mustChange
)

// minStretches is the number of stretches with data that the quick check must find. If the check finds fewer, the helper reads
// more of the disk.
const minStretches = 16

// evidence records the blocks of a disk that contained data before an erasure, and what these blocks contained after it.
type evidence struct {
	promise promise
	known   bool // the disk could be read before the erasure
	seed    maphash.Seed
	hashes  map[int64]uint64 // hashes of the blocks by offset; 0 for a block that could not be read
	blank   map[int64]bool   // offsets of the blocks that were read before the erasure and contained no data

	// written is the expected value of [sysfs.Written] during the erasure, and then the value found afterwards. If the value is
	// higher than expected, foreign is true, because another process may have written to the disk. The value is also higher if the
	// kernel repeats a write of zeroes that the disk does not support (blkdev_issue_zeroout in block/blk-lib.c). Therefore, the
	// helper then reads the whole disk.
	written uint64
	foreign bool

	zeroes, ones, random int   // number of blocks that contain only 00, only ff, or other data after the erasure
	uncertain            int64 // offset of a block with data that was not read before the erasure, or -1
	failure              error // why the erasure is not verified, or nil
}

// add records a block's content before the erasure. The data b is nil if the block cannot be read.
func (e *evidence) add(at int64, b []byte) {
	if e.hashes[at] = 0; b != nil {
		e.hashes[at] = maphash.Bytes(e.seed, b)
	}
}

// collectEvidence finds blocks that contain data or cannot be read. The parameter s is the result of the quick check, or nil if a
// sanitize operation prevents reading. If s contains too few blocks with data, the function reads the disk from the start until
// it has found enough. The function then records only the first and the last of these blocks in each stretch (see [stretchSize]).
func (c *claim) collectEvidence(ctx context.Context, promised promise, s *surface) (*evidence, error) {
	e := &evidence{
		promise: promised, known: s != nil, seed: maphash.MakeSeed(), hashes: make(map[int64]uint64), blank: make(map[int64]bool), uncertain: -1,
	}
	if s == nil {
		return e, nil
	}
	part, parts, filler := int64(-1), 0, s.blankByte()
	for at, b := range s.blocks() {
		switch e.blank[at] = !hasData(b, filler); {
		case e.blank[at]:
			continue
		case at/stretchSize != part:
			part = at / stretchSize
			parts++
		}
		e.add(at, b)
	}
	if parts >= minStretches {
		return e, nil
	}
	parts = 0
	err := c.readUntil(ctx, "find the blocks that prove its erasure", func(one chunk) bool {
		first, last := one.dataRange(filler)
		if first < 0 {
			return false
		}
		for at, b := range one.blocks() {
			if at == first || at == last {
				e.add(at, b)
			}
		}
		parts++
		return parts >= minStretches
	})
	return e, err
}

// verify bypasses the page cache and reads the blocks that contained data. verify then runs the quick check with new random
// blocks and returns its result. If the earlier content is unknown, verify reads the whole disk. If a block does not have the
// promised content, the error is [Failed].
func (c *claim) verify(ctx context.Context, e *evidence) (*surface, error) {
	if err := c.flush(); err != nil {
		return nil, err
	}
	written := sysfs.Written(&c.Tree, c.sysPath)
	e.written, e.foreign = written, written > e.written
	c.step.set("reading %s back", c.Name())
	held := make([]chunk, 0, len(e.hashes))
	for _, at := range slices.Sorted(maps.Keys(e.hashes)) {
		held = append(held, chunk{at: at, b: make([]byte, min(blockSize, c.size-at))})
	}
	if err := fillAll(ctx, held, c.read); err != nil {
		return nil, err
	}
	each := func(one chunk) bool {
		for at, b := range one.blocks() {
			e.block(at, b)
		}
		return e.failure != nil
	}
	for _, one := range held {
		each(one)
	}
	s, err := c.surfaceOf(ctx, c.seed(""))
	if err != nil {
		return nil, err
	}
	for at, b := range s.blocks() {
		if _, done := e.hashes[at]; !done {
			e.block(at, b)
		}
	}
	if (!e.known || e.foreign) && e.failure == nil {
		if err := c.readUntil(ctx, "check that nothing is left", each); err != nil {
			return nil, err
		}
	}
	if err := e.check(); err != nil {
		return nil, errorf(Failed, "verify %s: %w", c.Name(), err)
	}
	return s, nil
}

// block checks a block that was read after the erasure.
func (e *evidence) block(at int64, b []byte) {
	hash, hadData := e.hashes[at]
	switch {
	case e.failure != nil:
	case b == nil:
		e.failure = fmt.Errorf("byte %d cannot be read, although an erased block must be readable; replace the drive", at)
	case bytes.Count(b, []byte{0}) == len(b):
		e.zeroes++
	case e.foreign && !isBlank(b):
		e.failure = fmt.Errorf("data is present at byte %d", at)
	case e.promise == mustBeZero:
		e.failure = fmt.Errorf("the block at byte %d is not all zeroes", at)
	case isBlank(b):
		e.ones++
	case e.promise == mustVanish:
		e.failure = fmt.Errorf("data is still present at byte %d%s", at, keepsData)
	case hadData && hash == 0, !hadData && !e.blank[at]:
		e.uncertain = max(e.uncertain, at)
	case hadData && hash == maphash.Bytes(e.seed, b):
		e.failure = fmt.Errorf("the content at byte %d has not changed", at)
	default:
		e.random++
	}
}

// keepsData is the last part of a message. The message explains that a drive keeps discarded data, and names a remedy.
const keepsData = `: this drive keeps data that is discarded; scrub = "zero" erases it`

// check returns the reason why the erasure is not verified, or nil. If some blocks contain only ff and others only 00, the blocks
// that contain ff may be data. After a key change, blocks contain random data. Only a block that was read before the erasure can
// show that the data has changed. If no such block has changed, random data in the other blocks may be old data.
func (e *evidence) check() error {
	if e.failure == nil && e.zeroes > 0 && e.ones > 0 {
		return fmt.Errorf("%d blocks contain only ff, while other blocks contain only 00%s", e.ones, keepsData)
	}
	if e.failure == nil && e.uncertain >= 0 && e.random == 0 {
		return fmt.Errorf("the data at byte %d may be old, because it was not read before the erasure; erase the disk again", e.uncertain)
	}
	return e.failure
}

// describe describes what the blocks contain after the erasure.
func (e *evidence) describe() string {
	had := fmt.Sprintf("%d blocks of %d bytes contained data before", len(e.hashes), blockSize)
	switch {
	case !e.known:
		had = "the disk could not be read before"
	case len(e.hashes) == 0:
		had = "the disk was blank"
	}
	switch {
	case e.random > 0:
		return fmt.Sprintf("%s, all have changed, %d have random content", had, e.random)
	case e.ones > 0:
		return had + ", all read as ff"
	}
	return had + ", all read as zeroes"
}
