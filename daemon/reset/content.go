// SPDX-License-Identifier: Apache-2.0

package reset

// The quick check reads the first and last 16 MiB of a disk and 4,096 random blocks in between. Volume managers and file systems
// keep their signatures near the start or the end of a disk. The check treats a disk as blank if every byte that it reads is 00,
// or every byte is ff.

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
	edgeSize      = 16 << 20 // number of bytes read at the start and at the end of a disk
	pieceSize     = 1 << 20  // number of bytes read at a time from these two parts
	blockSize     = 4096     // number of bytes compared at a time
	randomCount   = 4096     // number of random blocks
	rotatingCount = 1024     // number of random blocks on a rotating disk
	readers       = 8        // number of parallel reads, because NVMe drives serve random reads in parallel
	// After maxBad unreadable blocks, the rest of a chunk is skipped, because a drive may spend seconds trying to read a bad block.
	maxBad = 16
)

// surface is the data that the quick check has read from a disk.
type surface struct {
	size   int64
	seed   seed
	chunks []chunk // sorted by offset
}

// seed determines which random blocks are read. To compare a disk with an earlier fingerprint, the check uses the seed from this
// fingerprint. Any other check uses a new random seed, so an attacker cannot know in advance which blocks are read. For a
// rotating disk, the lowest bit of the first byte is set, and the check reads fewer blocks. A 7,200 rpm disk takes up to 10 ms to
// read a block, and a probe must end within 16 s.
type seed [8]byte

// seed returns the seed that a fingerprint contains. If the text is not a fingerprint, seed returns a new seed for the disk
// (Documentation/ABI/stable/sysfs-block, queue/rotational).
func (f *diskFile) seed(fingerprint string) (s seed) {
	if isFingerprint(fingerprint) {
		return seedIn(fingerprint)
	}
	crand.Read(s[:]) // never fails
	s[0] &^= 1
	if f.Uint(f.sysPath, "queue/rotational") != 0 {
		s[0] |= 1
	}
	return s
}

// count returns the number of random blocks to read.
func (s seed) count() int {
	if s[0]&1 != 0 {
		return rotatingCount
	}
	return randomCount
}

// seedIn returns the seed in a fingerprint.
func seedIn(fingerprint string) (s seed) {
	// The digits are valid, because this program has checked or created the fingerprint.
	hex.Decode(s[:], []byte(fingerprint[:2*len(s)]))
	return s
}

// surfaceOf reads the data for the quick check of a disk.
func (f *diskFile) surfaceOf(ctx context.Context, s seed) (*surface, error) {
	f.step.set("reading %s", f.Name())
	return readSurface(ctx, f.size, s, f.read)
}

// readSurface reads the start and the end of a disk, and random blocks in between. readSurface reads a small disk completely. The
// size limit for small disks is the same for rotating disks.
func readSurface(ctx context.Context, size int64, from seed, read func(p []byte, offset int64) error) (*surface, error) {
	s := &surface{size: size, seed: from}
	add := func(at, end int64) {
		for ; at < end; at += pieceSize {
			s.chunks = append(s.chunks, chunk{at: at, b: make([]byte, min(pieceSize, end-at))})
		}
	}
	if size <= 2*edgeSize+2*randomCount*blockSize {
		add(0, size)
	} else {
		add(0, edgeSize)
		for _, at := range randomOffsets(size, from) {
			add(at, at+blockSize)
		}
		add(lastFrom(size), size)
	}
	return s, fillAll(ctx, s.chunks, read)
}

// chunk is a contiguous part of a disk.
type chunk struct {
	at  int64
	b   []byte
	bad []badBlock // blocks that cannot be read, in the order of their offsets
}

// badBlock is a block that the drive cannot read.
type badBlock struct {
	at  int64
	err error
}

// isBad reports whether an error means that a block's data is lost, rather than that the whole drive has failed (blk_errors in
// block/blk-core.c, BLK_STS_MEDIUM, BLK_STS_PROTECTION). The page cache turns each of these errors into EIO (filemap_read).
func isBad(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EILSEQ)
}

// fill reads a chunk. If the drive cannot read a part of the chunk, fill reads each block separately. After [maxBad] unreadable
// blocks, fill treats the rest of the chunk as unreadable as well.
func (c *chunk) fill(read func(p []byte, offset int64) error) error {
	err := read(c.b, c.at)
	if !isBad(err) {
		return err
	}
	for at, b := range c.blocks() {
		if len(c.b) > blockSize && len(c.bad) < maxBad {
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

// blocks yields the offset and the data of each block in a chunk, in order. The data of an unreadable block is nil.
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

// fillAll reads the data for all given chunks, several at a time. fillAll stops when the drive fails or ctx ends, but it
// continues after an unreadable block.
func fillAll(ctx context.Context, all []chunk, read func(p []byte, offset int64) error) error {
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

// randomOffsets returns the sorted offsets of random blocks between the first and the last part of a disk. Each block is equally
// likely to be chosen. For disks of the same size, the same seed gives the same offsets (ChaCha8, C2SP chacha8rand).
func randomOffsets(size int64, from seed) (chosen []int64) {
	blocks := uint64(lastFrom(size)-edgeSize) / blockSize
	source := rand.NewChaCha8(sha256.Sum256(from[:]))
	for range from.count() {
		chosen = append(chosen, edgeSize+int64(source.Uint64()%blocks)*blockSize)
	}
	slices.Sort(chosen)
	return slices.Compact(chosen)
}

// lastFrom returns the offset of the last part of a disk, which the quick check reads completely. This offset is a multiple of
// the block size, and at least 16 MiB before the end.
func lastFrom(size int64) int64 { return (size - edgeSize) &^ (blockSize - 1) }

// read fills the buffer p from a disk. If the kernel returns 0 bytes, the disk was removed.
func (f *diskFile) read(p []byte, offset int64) error {
	for done := 0; done < len(p); {
		n, err := f.pread(f.fd, p[done:], offset+int64(done))
		if err != nil {
			return errorf(Failed, "read %s at byte %d: %w", f.Name(), offset+int64(done), err)
		}
		if n == 0 {
			return errorf(Gone, "read %s at byte %d: the device ends there", f.Name(), offset+int64(done))
		}
		done += n
	}
	return nil
}

// contains reports whether the data that was read contains a given text at a given disk offset.
func (s *surface) contains(at int64, text string) bool {
	i, found := slices.BinarySearchFunc(s.chunks, at, func(c chunk, at int64) int { return cmp.Compare(c.at, at) })
	if !found {
		i-- // the last chunk that begins at or before this offset
	}
	return i >= 0 && at-s.chunks[i].at < int64(len(s.chunks[i].b)) && bytes.HasPrefix(s.chunks[i].b[at-s.chunks[i].at:], []byte(text))
}

// content describes the data on a disk. content returns the names of the signatures, if there are any. Otherwise, the description
// contains the offset of the first block that has data or cannot be read. content returns "" for a blank disk. A disk's unwritten
// blocks are filled with either 00 or ff (see blankByte). If they are filled with 00, a block of ff counts as data, and vice
// versa.
func (s *surface) content() string {
	filler := s.blankByte()
	for at, b := range s.blocks() {
		if !hasData(b, filler) {
			continue
		}
		switch found := s.signatures(); {
		case len(found) > 0:
			return strings.Join(found, ", ")
		case b == nil:
			return fmt.Sprintf("a block that cannot be read at byte %d", at)
		}
		return unknownData(at)
	}
	return ""
}

// checkReadable returns an error that names the first unreadable block, or nil. An unreadable block may contain data, so a disk
// with an unreadable block is not proven to be blank.
func (s *surface) checkReadable() error {
	for _, c := range s.chunks {
		if len(c.bad) > 0 {
			return errorf(Failed, "%w; if the data is not needed, erase the disk manually: %s", c.bad[0].err, byHand)
		}
	}
	return nil
}

func unknownData(at int64) string { return fmt.Sprintf("unknown data at byte %d", at) }

// fingerprint returns the seed and a hash of all blocks that were read and are not blank. For a blank disk, the hash is zero.
func (s *surface) fingerprint() string {
	sum := sha256.New()
	for at, b := range s.blocks() {
		if !isBlank(b) { // for blocks that were never written, some drives return 00 at one time and ff at another
			sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(at)))
			sum.Write(b)
		}
	}
	hash := sum.Sum(nil)[:16]
	if s.content() == "" {
		clear(hash)
	}
	return hex.EncodeToString(s.seed[:]) + ":" + hex.EncodeToString(hash)
}

// blankByte returns the byte value that fills the disk's unwritten blocks. blankByte takes this value from the first blank block.
func (s *surface) blankByte() byte {
	for _, b := range s.blocks() {
		if isBlank(b) {
			return b[0]
		}
	}
	return 0
}

// hasData reports whether a block contains data. The filler is the byte value that fills the disk's unwritten blocks.
func hasData(b []byte, filler byte) bool { return !isBlank(b) || b[0] != filler }

// blocks yields the offset and the data of each block that was read, in order. The data of an unreadable block is nil.
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

// isBlank reports whether a block consists only of 00 or only of ff. Flash returns such a block if it was never written. An
// unreadable block is not blank.
func isBlank(b []byte) bool {
	return len(b) > 0 && (b[0] == 0 || b[0] == 0xff) && bytes.Count(b, b[:1]) == len(b)
}
