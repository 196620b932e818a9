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

// verification records the blocks of a disk that contained data before an erasure, and what these blocks contained after it.
type verification struct {
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
func (v *verification) add(at int64, b []byte) {
	if v.hashes[at] = 0; b != nil {
		v.hashes[at] = maphash.Bytes(v.seed, b)
	}
}

// recordContent finds blocks that contain data or cannot be read. The parameter s is the result of the quick check, or nil if a
// sanitize operation prevents reading. If s contains too few blocks with data, the function reads the disk from the start until
// it has found enough. The function then records only the first and the last of these blocks in each stretch (see [stretchSize]).
func (f *diskFile) recordContent(ctx context.Context, promised promise, s *surface) (*verification, error) {
	v := &verification{
		promise: promised, known: s != nil, seed: maphash.MakeSeed(), hashes: make(map[int64]uint64), blank: make(map[int64]bool), uncertain: -1,
	}
	if s == nil {
		return v, nil
	}
	part, parts, filler := int64(-1), 0, s.blankByte()
	for at, b := range s.blocks() {
		switch v.blank[at] = !hasData(b, filler); {
		case v.blank[at]:
			continue
		case at/stretchSize != part:
			part = at / stretchSize
			parts++
		}
		v.add(at, b)
	}
	if parts >= minStretches {
		return v, nil
	}
	parts = 0
	err := f.readUntil(ctx, "find the blocks that prove its erasure", func(one chunk) bool {
		first, last := one.dataRange(filler)
		if first < 0 {
			return false
		}
		for at, b := range one.blocks() {
			if at == first || at == last {
				v.add(at, b)
			}
		}
		parts++
		return parts >= minStretches
	})
	return v, err
}

// verify bypasses the page cache and reads the blocks that contained data. verify then runs the quick check with new random
// blocks and returns its result. If the earlier content is unknown, verify reads the whole disk. If a block does not have the
// promised content, the error is [Failed].
func (f *diskFile) verify(ctx context.Context, v *verification) (*surface, error) {
	if err := f.flush(); err != nil {
		return nil, err
	}
	written := sysfs.Written(&f.Tree, f.sysPath)
	v.written, v.foreign = written, written > v.written
	f.step.set("reading %s back", f.Name())
	held := make([]chunk, 0, len(v.hashes))
	for _, at := range slices.Sorted(maps.Keys(v.hashes)) {
		held = append(held, chunk{at: at, b: make([]byte, min(blockSize, f.size-at))})
	}
	if err := fillAll(ctx, held, f.read); err != nil {
		return nil, err
	}
	each := func(one chunk) bool {
		for at, b := range one.blocks() {
			v.block(at, b)
		}
		return v.failure != nil
	}
	for _, one := range held {
		each(one)
	}
	s, err := f.surfaceOf(ctx, f.seed(""))
	if err != nil {
		return nil, err
	}
	for at, b := range s.blocks() {
		if _, done := v.hashes[at]; !done {
			v.block(at, b)
		}
	}
	if (!v.known || v.foreign) && v.failure == nil {
		if err := f.readUntil(ctx, "check that nothing is left", each); err != nil {
			return nil, err
		}
	}
	if err := v.check(); err != nil {
		return nil, errorf(Failed, "verify %s: %w", f.Name(), err)
	}
	return s, nil
}

// block checks a block that was read after the erasure.
func (v *verification) block(at int64, b []byte) {
	hash, hadData := v.hashes[at]
	switch {
	case v.failure != nil:
	case b == nil:
		v.failure = fmt.Errorf("byte %d cannot be read, although an erased block must be readable; replace the drive", at)
	case bytes.Count(b, []byte{0}) == len(b):
		v.zeroes++
	case v.foreign && !isBlank(b):
		v.failure = fmt.Errorf("data is present at byte %d", at)
	case v.promise == mustBeZero:
		v.failure = fmt.Errorf("the block at byte %d is not all zeroes", at)
	case isBlank(b):
		v.ones++
	case v.promise == mustVanish:
		v.failure = fmt.Errorf("data is still present at byte %d%s", at, keepsData)
	case hadData && hash == 0, !hadData && !v.blank[at]:
		v.uncertain = max(v.uncertain, at)
	case hadData && hash == maphash.Bytes(v.seed, b):
		v.failure = fmt.Errorf("the content at byte %d has not changed", at)
	default:
		v.random++
	}
}

// keepsData is the last part of a message. The message explains that a drive keeps discarded data, and names a remedy.
const keepsData = `: this drive keeps data that is discarded; scrub = "zero" erases it`

// check returns the reason why the erasure is not verified, or nil. If some blocks contain only ff and others only 00, the blocks
// that contain ff may be data. After a key change, blocks contain random data. Only a block that was read before the erasure can
// show that the data has changed. If no such block has changed, random data in the other blocks may be old data.
func (v *verification) check() error {
	if v.failure == nil && v.zeroes > 0 && v.ones > 0 {
		return fmt.Errorf("%d blocks contain only ff, while other blocks contain only 00%s", v.ones, keepsData)
	}
	if v.failure == nil && v.uncertain >= 0 && v.random == 0 {
		return fmt.Errorf("the data at byte %d may be old, because it was not read before the erasure; erase the disk again", v.uncertain)
	}
	return v.failure
}

// describe describes what the blocks contain after the erasure.
func (v *verification) describe() string {
	had := fmt.Sprintf("%d blocks of %d bytes contained data before", len(v.hashes), blockSize)
	switch {
	case !v.known:
		had = "the disk could not be read before"
	case len(v.hashes) == 0:
		had = "the disk was blank"
	}
	switch {
	case v.random > 0:
		return fmt.Sprintf("%s, all have changed, %d have random content", had, v.random)
	case v.ones > 0:
		return had + ", all read as ff"
	}
	return had + ", all read as zeroes"
}
