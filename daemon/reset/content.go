// SPDX-License-Identifier: Apache-2.0

package reset

// The quick check of what is on a disk reads its first and last 16 MiB, with all places where volume managers and file systems
// leave a mark, and 4,096 random places between. A disk is blank if all that was read is 00, or all is ff.

import (
	"bytes"
	"cmp"
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	edge        = 16 << 20 // bytes that are read at either end
	piece       = 1 << 20  // bytes of one read there
	blockSize   = 4096     // bytes that are compared at once
	randomCount = 4096     // random places, of a block each
	turnedCount = 1024     // the same on a disk that turns
	readers     = 8        // reads at once, as NVMe drives answer random reads side by side
	mostBad     = 16       // blocks of a read that are found to be unreadable, of which each may take a drive seconds
)

// surface is what the quick check has read of a disk.
type surface struct {
	size   int64
	seed   seed
	chunks []chunk // in their order
}

// seed decides which places are read. Each check takes another, so that no one can prepare a disk for it. Its lowest bit
// reports whether the disk turns. Then there are fewer places. A disk of 7,200 rpm takes up to 10 ms for each, and a probe has
// 16 s.
type seed [8]byte

// seed returns the seed of a fingerprint, or without one a new seed for the disk (Documentation/ABI/stable/sysfs-block,
// queue/rotational).
func (c *claim) seed(fingerprint string) (s seed) {
	if fingerprints.MatchString(fingerprint) {
		return seedIn(fingerprint)
	}
	crand.Read(s[:]) // never fails
	s[0] &^= 1
	if c.Uint(c.sysPath, "queue/rotational") != 0 {
		s[0] |= 1
	}
	return s
}

// count returns how many random places are read.
func (s seed) count() int {
	if s[0]&1 != 0 {
		return turnedCount
	}
	return randomCount
}

// seedIn returns the seed of a fingerprint.
func seedIn(fingerprint string) (s seed) {
	hex.Decode(s[:], []byte(fingerprint[:2*len(s)])) // digits, as it was checked or made here
	return s
}

// surfaceOf reads a disk.
func (c *claim) surfaceOf(ctx context.Context, s seed) (*surface, error) {
	c.step.is("reading %s", c.Name())
	return readSurface(ctx, c.size, s, c.read)
}

// readSurface reads the places of a disk. It reads all of the disk where that is not twice as much as the places of one that
// does not turn.
func readSurface(ctx context.Context, size int64, from seed, read func(p []byte, offset int64) error) (*surface, error) {
	s := &surface{size: size, seed: from}
	add := func(at, end int64) {
		for ; at < end; at += piece {
			s.chunks = append(s.chunks, chunk{at: at, b: make([]byte, min(piece, end-at))})
		}
	}
	if size <= 2*edge+2*randomCount*blockSize {
		add(0, size)
	} else {
		add(0, edge)
		for _, at := range places(size, from) {
			add(at, at+blockSize)
		}
		add(lastFrom(size), size)
	}
	return s, together(ctx, s.chunks, read)
}

// chunk is a part of a disk.
type chunk struct {
	at  int64
	b   []byte
	bad []badBlock // that cannot be read, in their order
}

// badBlock is a block that the drive cannot read.
type badBlock struct {
	at  int64
	err error
}

// isBad reports whether an error of a read is about what is read, and not about the drive. Its data is lost (blk_errors in
// block/blk-core.c, BLK_STS_MEDIUM, BLK_STS_PROTECTION). The page cache makes EIO of each (filemap_read).
func isBad(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EILSEQ)
}

// fill reads a chunk. Where the drive cannot read all of it, each block is read by itself. After [mostBad] the rest of the
// chunk counts as unreadable too.
func (c *chunk) fill(read func(p []byte, offset int64) error) error {
	err := read(c.b, c.at)
	if !isBad(err) {
		return err
	}
	for at, b := range c.blocks() {
		if len(c.b) > blockSize && len(c.bad) < mostBad {
			err = read(b, at)
		}
		switch {
		case err == nil:
		case !isBad(err):
			return err
		default:
			clear(b)
			c.bad = append(c.bad, badBlock{at, err})
		}
	}
	return nil
}

// blocks yields the blocks of a chunk and where they are, in their order. One that cannot be read is nil.
func (c *chunk) blocks() iter.Seq2[int64, []byte] {
	return func(yield func(int64, []byte) bool) {
		at := c.at
		for b := range slices.Chunk(c.b, blockSize) {
			next := at + int64(len(b))
			if slices.ContainsFunc(c.bad, func(bad badBlock) bool { return bad.at == at }) {
				b = nil
			}
			if !yield(at, b) {
				return
			}
			at = next
		}
	}
}

// together fills all chunks, several at a time, until a read fails or ctx ends. A block that the drive cannot read is no
// such failure.
func together(ctx context.Context, all []chunk, read func(p []byte, offset int64) error) error {
	var next atomic.Int64
	var first error
	var once sync.Once
	var running sync.WaitGroup
	for range min(readers, len(all)) {
		running.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(all)) {
					return
				}
				err := ctx.Err()
				if err != nil {
					err = errorf(Late, "reading the disk took too long: %w", err)
				} else {
					err = all[i].fill(read)
				}
				if err != nil {
					next.Store(int64(len(all)))
					once.Do(func() { first = err })
				}
			}
		})
	}
	running.Wait()
	return first
}

// places returns random blocks between the ends of a disk, in their order, each as likely as any other. The same seed gives
// the same places (ChaCha8, C2SP chacha8rand).
func places(size int64, from seed) (chosen []int64) {
	blocks := uint64(lastFrom(size)-edge) / blockSize
	source := rand.NewChaCha8(sha256.Sum256(from[:]))
	for range from.count() {
		chosen = append(chosen, edge+int64(source.Uint64()%blocks)*blockSize)
	}
	slices.Sort(chosen)
	return slices.Compact(chosen)
}

// lastFrom returns where the last blocks begin that are read. They begin at a whole block, at least edge bytes before the end.
func lastFrom(size int64) int64 { return (size - edge) &^ (blockSize - 1) }

// read reads all of p. A disk that is gone ends at 0 bytes.
func (c *claim) read(p []byte, offset int64) error {
	for done := 0; done < len(p); {
		n, err := c.pread(c.fd, p[done:], offset+int64(done))
		if err != nil {
			return errorf(Failed, "read %s at byte %d: %w", c.Name(), offset+int64(done), err)
		}
		if n == 0 {
			return errorf(Gone, "read %s at byte %d: there is nothing any more", c.Name(), offset+int64(done))
		}
		done += n
	}
	return nil
}

// has reports whether a text is at a place of the disk.
func (s *surface) has(at int64, text string) bool {
	i, found := slices.BinarySearchFunc(s.chunks, at, func(c chunk, at int64) int { return cmp.Compare(c.at, at) })
	if !found {
		i-- // the chunk that begins before
	}
	return i >= 0 && at-s.chunks[i].at < int64(len(s.chunks[i].b)) && bytes.HasPrefix(s.chunks[i].b[at-s.chunks[i].at:], []byte(text))
}

// content describes what is on the disk by its signatures, or by where other data begins. It returns "" for a blank disk.
func (s *surface) content() string {
	for at, b := range s.filled() {
		if found := s.signs(); len(found) > 0 {
			return strings.Join(found, ", ")
		}
		if b == nil {
			return fmt.Sprintf("a block that cannot be read at byte %d", at)
		}
		return unknownData(at)
	}
	return ""
}

// readable returns an error that names the first block that cannot be read. With such a block nothing is proven of a disk.
func (s *surface) readable() error {
	for _, c := range s.chunks {
		if len(c.bad) > 0 {
			return errorf(Failed, "%w; if no one needs what is on it, erase it by hand: %s", c.bad[0].err, byHand)
		}
	}
	return nil
}

func unknownData(at int64) string { return fmt.Sprintf("unknown data at byte %d", at) }

// fingerprint returns the seed, and the hash over all blocks that were read and are not blank.
func (s *surface) fingerprint() string {
	sum := sha256.New()
	for at, b := range s.blocks() {
		if !blank(b) { // some drives give now 00 and now ff for blocks that were never written
			sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(at)))
			sum.Write(b)
		}
	}
	return hex.EncodeToString(s.seed[:]) + ":" + hex.EncodeToString(sum.Sum(nil)[:16])
}

// filled yields the blocks that hold something, in their order. ff among 00 may be data, and so may 00 among ff.
func (s *surface) filled() iter.Seq2[int64, []byte] {
	filler := s.filler()
	return func(yield func(int64, []byte) bool) {
		for at, b := range s.blocks() {
			if holds(b, filler) && !yield(at, b) {
				return
			}
		}
	}
}

// filler returns the byte of which a disk is full where nothing was written, by its first blank block.
func (s *surface) filler() byte {
	for _, b := range s.blocks() {
		if blank(b) {
			return b[0]
		}
	}
	return 0
}

// holds reports whether a block holds something, on a disk with that filler.
func holds(b []byte, filler byte) bool { return !blank(b) || b[0] != filler }

// blocks yields all blocks, in their order. One that cannot be read is nil.
func (s *surface) blocks() iter.Seq2[int64, []byte] {
	return func(yield func(int64, []byte) bool) {
		for _, c := range s.chunks {
			for at, b := range c.blocks() {
				if !yield(at, b) {
					return
				}
			}
		}
	}
}

// blank reports whether a block is one byte over and over, 00 or ff. Flash reads so where nothing was written. A block that
// cannot be read is not blank.
func blank(b []byte) bool {
	return len(b) > 0 && (b[0] == 0 || b[0] == 0xff) && bytes.Count(b, b[:1]) == len(b)
}
