// SPDX-License-Identifier: Apache-2.0

package reset

// An erasure is verified by reading what was written before it. A drive may acknowledge Deallocate and keep the data (NVM
// Command Set Specification 1.0, 3.2.3: the host cannot tell), so that places which were blank before prove nothing.

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
)

// promise is what a disk has to read as after an erasure.
type promise int

const (
	mustBeZero promise = iota
	// mustVanish: 00 or ff: a discard is a hint that a disk may ignore, in parts even.
	mustVanish
	// mustChange: that, or noise: after its key has changed, what was there reads as something else (NVMe Base
	// Specification 2.0, 8.21).
	mustChange
)

// enough is in how many parts of a disk data must be known to be, to prove by them that it was erased.
const enough = 16

// prints are blocks of a disk that held something, by their place.
type prints struct {
	seed  maphash.Seed
	at    map[int64]uint64 // 0: the block could not be read
	known bool             // whether the disk could be read; else nothing is known of any block
}

// add notes a block; nil: it cannot be read.
func (p *prints) add(at int64, b []byte) {
	if p.at[at] = 0; b != nil {
		p.at[at] = maphash.Bytes(p.seed, b)
	}
}

// written finds places that hold something, or that cannot be read, in the quick check s and then, where that has found few,
// by reading the disk. It holds no more than the ends of what it finds in each part. s is nil where a sanitize keeps the
// disk from being read.
func (h *host) written(ctx context.Context, c *claim, s *surface) (prints, error) {
	p := prints{seed: maphash.MakeSeed(), at: make(map[int64]uint64), known: s != nil}
	if s == nil {
		return p, nil
	}
	part, parts := int64(-1), 0
	for at, b := range s.blocks() {
		if blank(b) {
			continue
		}
		p.add(at, b)
		if at/stretch != part {
			part = at / stretch
			parts++
		}
	}
	if parts >= enough {
		return p, nil
	}
	parts = 0
	err := h.readUntil(ctx, c, "what to verify its erasure by", func(one chunk) bool {
		first, last := one.filled()
		if first < 0 {
			return false
		}
		for at, b := range one.blocks() {
			if at == first || at == last {
				p.add(at, b)
			}
		}
		parts++
		return parts >= enough
	})
	return p, err
}

// verify reads the disk itself, not what is cached of it, and describes how it reads: the places that held something, the
// ends and new random places; or all of it where nothing is known of what it held. A disk that does not keep the promise is
// [Failed].
func (h *host) verify(ctx context.Context, c *claim, must promise, had prints, a *Answer) (seen string, err error) {
	if err := h.flush(c); err != nil {
		return "", err
	}
	check := tally{must: must, had: had, unknown: -1}
	each := func(one chunk) bool {
		for at, b := range one.blocks() {
			check.block(at, b)
		}
		return check.bad != nil
	}
	h.step.is("reading %s back", c.name())
	held := make([]chunk, 0, len(had.at))
	for _, at := range slices.Sorted(maps.Keys(had.at)) {
		held = append(held, chunk{at: at, b: make([]byte, min(blockSize, c.size-at))})
	}
	if err := together(ctx, held, h.reading(c)); err != nil {
		return "", err
	}
	for _, one := range held {
		each(one)
	}
	s, err := h.surfaceOf(ctx, c, h.newSeed(c.sysPath))
	if err != nil {
		return "", err
	}
	for at, b := range s.blocks() {
		if _, done := had.at[at]; !done {
			check.block(at, b)
		}
	}
	if !had.known && check.bad == nil {
		if err := h.readUntil(ctx, c, "that nothing is left there", each); err != nil {
			return "", err
		}
	}
	if err := check.verdict(); err != nil {
		return "", errorf(Failed, "verify %s: %w", c.name(), err)
	}
	if check.noise > 0 {
		a.Fingerprint = s.fingerprint().String()
	}
	return check.inWords(), nil
}

// tally is how the blocks read that were read back.
type tally struct {
	must         promise
	had          prints
	noise, other int
	unknown      int64 // where a block holds something of which nothing is known; -1: nowhere
	bad          error
}

func (t *tally) block(at int64, b []byte) {
	before, held := t.had.at[at]
	switch {
	case t.bad != nil:
	case b == nil:
		t.bad = fmt.Errorf("byte %d cannot be read: an erased block must be readable; replace the drive", at)
	case bytes.Count(b, []byte{0}) == len(b):
	case t.must == mustBeZero:
		t.bad = fmt.Errorf("byte %d and after are not zeroes", at)
	case blank(b):
		t.other++
	case t.must == mustVanish:
		t.bad = fmt.Errorf("there is data at byte %d still: this drive keeps data that is discarded; scrub = \"zero\" erases it", at)
	case !t.had.known, held && before == 0:
		t.unknown = max(t.unknown, at)
	case held && before == maphash.Bytes(t.had.seed, b):
		t.bad = fmt.Errorf("at byte %d it reads as before", at)
	default:
		t.noise++
	}
}

// verdict returns why the erasure is not verified. Noise is what a new key makes of a block; a block of which nothing is known
// counts as that only where another one is proven to have changed.
func (t *tally) verdict() error {
	if t.bad == nil && t.unknown >= 0 && t.noise == 0 {
		return fmt.Errorf("at byte %d is data that could not be read before the erasure, and nothing tells the one from the other; erase the disk again", t.unknown)
	}
	return t.bad
}

// inWords describes how a disk reads.
func (t *tally) inWords() string {
	had := fmt.Sprintf("%d blocks of %d bytes had held something", len(t.had.at), blockSize)
	switch {
	case !t.had.known:
		had = "it could not be read before"
	case len(t.had.at) == 0:
		had = "the disk was blank"
	}
	switch {
	case t.noise > 0:
		return fmt.Sprintf("%s, none reads as before, %d read as noise", had, t.noise)
	case t.other > 0:
		return fmt.Sprintf("%s, all read as 00 or ff, %d of them not as zeroes", had, t.other)
	}
	return had + ", all read as zeroes"
}
