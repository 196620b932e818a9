// SPDX-License-Identifier: Apache-2.0

package reset

// What is on a disk, by the quick check: its first and last 16 MiB, with all places where volume managers and file systems
// leave a mark, and 4,096 random places between. A disk is blank if each block that was read is 00 or ff over and over.

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	edge        = 16 << 20 // bytes that are read at either end
	piece       = 1 << 20  // bytes of one read there
	blockSize   = 4096     // bytes that are compared at once
	randomCount = 4096     // random places, of a block each
	readers     = 8        // reads at once: NVMe drives answer random reads side by side
	mostNamed   = 8        // kinds of content that are told
)

// surface is what the quick check has read of a disk.
type surface struct {
	size        int64
	seed        seed
	first, last []byte  // the ends, which overlap on a small disk
	places      []int64 // between the ends, in their order, each a whole number of blocks
	between     []byte  // a block each
	read        func(p []byte, offset int64) error
}

// seed decides which places are read. Each check takes another, so that no one can prepare a disk for it.
type seed [8]byte

func newSeed() (s seed) {
	crand.Read(s[:]) // never fails
	return s
}

// fingerprint is what was on a disk: a hash over all blocks that were read and are not blank.
type fingerprint struct {
	seed seed
	sum  [16]byte
}

// String returns it as answers have it.
func (f fingerprint) String() string {
	return hex.EncodeToString(f.seed[:]) + ":" + hex.EncodeToString(f.sum[:])
}

func parseFingerprint(text string) (f fingerprint, err error) {
	first, second, _ := strings.Cut(text, ":")
	seed, err1 := hex.DecodeString(first)
	sum, err2 := hex.DecodeString(second)
	if err1 != nil || err2 != nil || len(seed) != len(f.seed) || len(sum) != len(f.sum) {
		return f, invalidf("fingerprint %.60q: must be as a probe has reported it", text)
	}
	return fingerprint{seed: [8]byte(seed), sum: [16]byte(sum)}, nil
}

// seedOf returns the seed of the fingerprint in a request, or a new one.
func seedOf(r Request) seed {
	if f, err := parseFingerprint(r.Fingerprint); err == nil {
		return f.seed
	}
	return newSeed()
}

// surfaceOf reads a disk.
func (h *host) surfaceOf(ctx context.Context, c *claim, s seed) (*surface, error) {
	h.step.is("reading %s", c.name())
	return readSurface(ctx, c.size, s, func(p []byte, offset int64) error { return h.readAt(c, p, offset) })
}

// readSurface reads a disk of a size.
func readSurface(ctx context.Context, size int64, from seed, read func(p []byte, offset int64) error) (*surface, error) {
	s := &surface{size: size, seed: from, read: read, places: places(size, from)}
	s.first, s.last = make([]byte, min(edge, size)), make([]byte, size-lastFrom(size))
	s.between = make([]byte, len(s.places)*blockSize)
	return s, together(ctx, s.reads(), read)
}

// chunk is a part of a disk and where it is.
type chunk struct {
	at int64
	b  []byte
}

// reads returns the reads that fill s, in the order of their places.
func (s *surface) reads() (all []chunk) {
	for p := range slices.Chunk(s.first, piece) {
		all = append(all, chunk{int64(len(all)) * piece, p})
	}
	for i := 0; i < len(s.places); { // places next to each other are one read
		n := 1
		for i+n < len(s.places) && s.places[i+n] == s.places[i+n-1]+blockSize && n*blockSize < piece {
			n++
		}
		all = append(all, chunk{s.places[i], s.between[i*blockSize : (i+n)*blockSize]})
		i += n
	}
	at := lastFrom(s.size)
	for p := range slices.Chunk(s.last, piece) {
		all = append(all, chunk{at, p})
		at += int64(len(p))
	}
	return all
}

// together makes all reads, several at a time, until one fails or ctx ends.
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
					err = mistakes(func() error { return read(all[i].b, all[i].at) })
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

// places returns where to read between the ends of a disk, in their order: random blocks, each as likely as any other; or
// all of them where there are not twice as many. The same seed gives the same places (ChaCha8: C2SP chacha8rand).
func places(size int64, from seed) []int64 {
	blocks := (lastFrom(size) - edge) / blockSize
	if blocks <= 0 {
		return nil
	}
	chosen := make([]int64, 0, min(blocks, 2*randomCount))
	if blocks <= 2*randomCount {
		for i := range blocks {
			chosen = append(chosen, edge+i*blockSize)
		}
		return chosen
	}
	source := rand.NewChaCha8(sha256.Sum256(from[:]))
	for range randomCount {
		chosen = append(chosen, edge+int64(source.Uint64()%uint64(blocks))*blockSize)
	}
	slices.Sort(chosen)
	return slices.Compact(chosen)
}

// lastFrom returns where the last blocks begin that are read: at least so many bytes before the end, in whole blocks.
func lastFrom(size int64) int64 { return max(size-edge, 0) &^ (blockSize - 1) }

// readAt reads all of p. A disk that is gone ends at 0 bytes.
func (h *host) readAt(c *claim, p []byte, offset int64) error {
	return h.readFrom(c.fd, c.name(), p, offset)
}

func (h *host) readFrom(fd int, name string, p []byte, offset int64) error {
	for done := 0; done < len(p); {
		n, err := h.pread(fd, p[done:], offset+int64(done))
		if err != nil {
			return errorf(Failed, "read %s at byte %d: %w", name, offset+int64(done), err)
		}
		if n == 0 {
			return errorf(Gone, "read %s at byte %d: there is nothing any more", name, offset+int64(done))
		}
		done += n
	}
	return nil
}

// at returns n bytes of the disk; nil if they are not on it.
func (s *surface) at(offset int64, n int) ([]byte, error) {
	end := offset + int64(n)
	lastFrom := lastFrom(s.size)
	switch {
	case offset < 0 || end > s.size:
		return nil, nil
	case end <= int64(len(s.first)):
		return s.first[offset:end], nil
	case offset >= lastFrom:
		return s.last[offset-lastFrom : end-lastFrom], nil
	}
	return s.block(offset, n)
}

// block reads what is between the ends, whole blocks at a time.
func (s *surface) block(offset int64, n int) ([]byte, error) {
	from := offset &^ (blockSize - 1)
	b := make([]byte, min((offset+int64(n)-from+blockSize-1)&^(blockSize-1), s.size-from))
	if err := s.read(b, from); err != nil {
		return nil, err
	}
	return b[offset-from:][:n], nil
}

// zapped is where a first partition usually begins. A lost partition table leaves the signatures there.
const zapped = 1 << 20

// signs returns the names of the signatures on the disk, each once.
func (s *surface) signs() (found []string, err error) {
	for _, sig := range signatures() {
		for _, at := range sig.places(s.size) {
			b, err := s.at(at, len(sig.magic))
			if err != nil {
				return nil, err
			}
			if string(b) == sig.magic && !slices.Contains(found, sig.name) {
				found = append(found, sig.name)
			}
		}
	}
	return found, nil
}

// content describes what is on the disk: the signatures, or where other data begins. Empty: it is blank.
func (s *surface) content() (string, error) {
	found, err := s.signs()
	if err != nil {
		return "", err
	}
	for at, b := range s.blocks() {
		if !blank(b) {
			if len(found) == 0 {
				return unknownData(at), nil
			}
			found = s.refined(found)
			return strings.Join(found[:min(len(found), mostNamed)], ", "), nil
		}
	}
	return "", nil
}

func unknownData(at int64) string { return fmt.Sprintf("unknown data at byte %d", at) }

// fingerprint returns the hash by which what is on the disk is known again.
func (s *surface) fingerprint() fingerprint {
	sum := sha256.New()
	for at, b := range s.blocks() {
		if !blank(b) { // some drives give now 00 and now ff for blocks that were never written
			sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(at)))
			sum.Write(b)
		}
	}
	return fingerprint{s.seed, [16]byte(sum.Sum(nil))}
}

// blocks yields all blocks that were read, each once, in their order.
func (s *surface) blocks() iter.Seq2[int64, []byte] {
	return func(yield func(int64, []byte) bool) {
		next := int64(0) // on a small disk the ends overlap
		for _, c := range s.reads() {
			at := c.at
			for b := range slices.Chunk(c.b, blockSize) {
				if at >= next && !yield(at, b) {
					return
				}
				at += int64(len(b))
				next = max(next, at)
			}
		}
	}
}

// blank reports whether a block is one byte over and over, 00 or ff: flash reads so where nothing was written.
func blank(b []byte) bool {
	return len(b) == 0 || (b[0] == 0 || b[0] == 0xff) && bytes.Count(b, b[:1]) == len(b)
}
