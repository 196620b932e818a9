// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"fmt"
	"hash/maphash"
)

// promise is what a disk has to read as after an erasure.
type promise int

const (
	mustBeZero promise = iota
	// mustVanish: one byte over and over, whichever: a discard is a hint that a disk may ignore, in parts even.
	mustVanish
	// mustChange: that, or noise: after its key has changed, what was there reads as something else (NVMe Base
	// Specification 2.0, 8.21).
	mustChange
)

// prints are the blocks that were read of a disk and held something, by their place.
type prints struct {
	seed  maphash.Seed
	at    map[int64]uint64
	count int // of all that were read
}

// fingerprints reads the ends of a disk and the samples between; nothing where a sanitize keeps it from being read.
func (h *host) fingerprints(r Request, c *claim) (prints, error) {
	p := prints{seed: maphash.MakeSeed(), at: make(map[int64]uint64)}
	if r.Method == "sanitize" && h.unreadable(c) {
		return p, nil
	}
	h.step.is("reading %s", c.name())
	s, err := h.surfaceOf(c)
	if err != nil {
		return prints{}, err
	}
	for at, b := range s.pieces(&err) {
		if p.count++; !uniform(b) {
			p.at[at] = maphash.Bytes(p.seed, b)
		}
	}
	return p, err
}

// verify reads the disk itself, not what is cached of it, and returns in words how it reads. A disk that does not keep
// the promise is [Failed].
func (h *host) verify(c *claim, must promise, before prints) (seen string, err error) {
	if err := h.flush(c); err != nil {
		return "", err
	}
	s, err := h.surfaceOf(c)
	if err != nil {
		return "", err
	}
	var noise, other int
	for at, b := range s.pieces(&err) {
		switch {
		case bytes.Count(b, []byte{0}) == len(b):
			continue
		case must == mustBeZero:
			return "", errorf(Failed, "verify %s: byte %d and after are not zeroes", c.name(), at)
		case uniform(b):
			other++
		case must == mustVanish:
			return "", errorf(Failed, "verify %s: there is data at byte %d still: the disk does not erase what is discarded; use zero", c.name(), at)
		case before.at[at] == maphash.Bytes(before.seed, b):
			return "", errorf(Failed, "verify %s: at byte %d it reads as before", c.name(), at)
		default:
			noise++
		}
	}
	if err != nil {
		return "", err
	}
	return inWords(before, noise, other), nil
}

// inWords says how a disk reads.
func inWords(before prints, noise, other int) string {
	had := "it could not be read before"
	if before.count > 0 {
		had = fmt.Sprintf("%d of %d blocks of %d bytes had held something", len(before.at), before.count, sampleSize)
	}
	switch {
	case noise > 0:
		return fmt.Sprintf("%s, none reads as before, %d read as noise", had, noise)
	case other > 0:
		return fmt.Sprintf("%s, all read as one byte over and over, %d of them not zero", had, other)
	}
	return had + ", all read as zeroes"
}
