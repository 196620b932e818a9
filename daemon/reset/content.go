// SPDX-License-Identifier: Apache-2.0

package reset

// What is on a disk, by its first and last MiB and by samples between.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"slices"
	"strings"
)

const (
	edge        = 1 << 20 // bytes that are read at either end: all signatures but three are there
	sampleSize  = 4096    // bytes of a sample
	sampleCount = 64      // samples between the ends, evenly spread
	mostNamed   = 8       // kinds of content that are told
)

// surface reads a disk.
type surface struct {
	read        func(p []byte, offset int64) error
	size        int64
	first, last []byte // what has been read of the ends
}

// surfaceOf reads the ends of a disk.
func (h *host) surfaceOf(c *claim) (*surface, error) {
	s := &surface{size: c.size, read: func(p []byte, offset int64) error { return h.readAt(c, p, offset) }}
	return s, s.readEnds()
}

func (s *surface) readEnds() error {
	s.first = make([]byte, min(edge, s.size))
	s.last = make([]byte, min(edge, s.size))
	if err := s.read(s.first, 0); err != nil {
		return err
	}
	return s.read(s.last, s.size-int64(len(s.last)))
}

// readAt reads all of p. A disk that is gone ends at 0 bytes.
func (h *host) readAt(c *claim, p []byte, offset int64) error {
	for done := 0; done < len(p); {
		n, err := h.pread(c.fd, p[done:], offset+int64(done))
		if err != nil {
			return errorf(Failed, "read %s at byte %d: %w", c.name(), offset+int64(done), err)
		}
		if n == 0 {
			return errorf(Gone, "read %s at byte %d: there is nothing any more", c.name(), offset+int64(done))
		}
		done += n
	}
	return nil
}

// at returns n bytes of the disk; nil if they are not on it.
func (s *surface) at(offset int64, n int) ([]byte, error) {
	end := offset + int64(n)
	lastFrom := s.size - int64(len(s.last))
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
	from := offset &^ (sampleSize - 1)
	b := make([]byte, min((offset+int64(n)-from+sampleSize-1)&^(sampleSize-1), s.size-from))
	if err := s.read(b, from); err != nil {
		return nil, err
	}
	return b[offset-from:][:n], nil
}

// content tells what is on the disk: the signatures that are found, and whether there is anything else. Empty: all that
// was read is one and the same byte over and over, as after an erasure.
func (s *surface) content() (string, error) {
	var found []string
	for _, sig := range signatures() {
		b, err := s.at(sig.place(s.size), len(sig.magic))
		if err != nil {
			return "", err
		}
		if string(b) == sig.magic && !slices.Contains(found, sig.name) {
			found = append(found, sig.name)
		}
	}
	found = s.refined(found)
	where, any, err := s.unlike()
	if err != nil {
		return "", err
	}
	if any && len(found) == 0 {
		return fmt.Sprintf("unknown data at byte %d", where), nil
	}
	return strings.Join(found[:min(len(found), mostNamed)], ", "), nil
}

// unlike returns where the first block is that is not one byte over and over, or not that of the blocks before; drives
// mix blocks of 00 and of ff where nothing was ever written.
func (s *surface) unlike() (where int64, any bool, err error) {
	blank := -1 // the byte of the first block
	for from, b := range s.pieces(&err) {
		switch {
		case len(b) == 0:
		case !uniform(b):
			return from, true, nil
		case blank < 0:
			blank = int(b[0])
		case int(b[0]) != blank && (!untouched(b[0]) || !untouched(byte(blank))):
			return from, true, nil
		}
	}
	return 0, false, err
}

// untouched tells whether flash reads as this byte where nothing was written.
func untouched(b byte) bool { return b == 0 || b == 0xff }

// print returns a number by which what is on the disk is known again, over all that is read of it: another number is
// something else. The same for something else comes once in 2^64 times, or of somebody's will; but who makes up such data
// has what they put there themselves taken for a pod's, no more. Blocks of 00 or ff are left out: of those that were never
// written, or are discarded, some drives give now the one and now the other. Never 0.
func (s *surface) print() (sum uint64, err error) {
	table := crc64.MakeTable(crc64.ECMA)
	for from, b := range s.pieces(&err) {
		if len(b) > 0 && uniform(b) && untouched(b[0]) {
			continue
		}
		sum = crc64.Update(sum, table, binary.LittleEndian.AppendUint64(nil, uint64(from)))
		sum = crc64.Update(sum, table, b)
	}
	return max(sum, 1), err
}

// pieces goes through the ends and the samples, block by block.
func (s *surface) pieces(failed *error) func(yield func(int64, []byte) bool) {
	return func(yield func(int64, []byte) bool) {
		for i, b := range [][]byte{s.first, s.last} {
			start := int64(i) * (s.size - int64(len(b)))
			for n := 0; n < len(b); n += sampleSize {
				if !yield(start+int64(n), b[n:min(n+sampleSize, len(b))]) {
					return
				}
			}
		}
		for _, offset := range samples(s.size) {
			b, err := s.at(offset, sampleSize)
			if err != nil {
				*failed = err
				return
			}
			if !yield(offset, b) {
				return
			}
		}
	}
}

// samples returns where to read between the ends of a disk.
func samples(size int64) []int64 {
	between := size - 2*edge - sampleSize
	if between <= 0 {
		return nil
	}
	offsets := make([]int64, sampleCount)
	for i := range offsets {
		offsets[i] = (edge + between/(sampleCount-1)*int64(i)) &^ (sampleSize - 1)
	}
	return offsets
}

// uniform tells whether b is one byte over and over: what a disk that holds nothing reads as, mostly 00, sometimes ff.
func uniform(b []byte) bool { return len(b) == 0 || bytes.Count(b, b[:1]) == len(b) }
