// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"iter"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// The functions in this file read a whole disk.

// stretchSize is the size of one read in bytes. The kernel splits such a read into commands that the drive executes in parallel.
// The data still fits into the processor's cache, where it stays until the helper compares it.
const stretchSize = 2 << 20

// sweep reads a disk from an offset to its end, and yields one stretch after another. While the caller processes a stretch, the
// function reads the next one. A stretch's bytes are valid only until yield returns. If a read fails or ctx ends, the function
// yields the error and stops. The function does not return until its last read has ended. All calls to the function read come
// from the same goroutine.
func sweep(ctx context.Context, from, size int64, read func(b []byte, at int64) error) iter.Seq2[chunk, error] {
	type result struct {
		chunk
		err error
	}
	return func(yield func(chunk, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		results := make(chan result) // unbuffered, so once a send returns, the previous stretch is free again
		go func() {
			defer close(results)
			this, other := alignedBuffer(stretchSize), alignedBuffer(stretchSize)
			for at := from; at < size; at += stretchSize {
				r := result{chunk{at: at, b: this[:min(stretchSize, size-at)]}, ctx.Err()}
				if r.err == nil {
					r.err = r.fill(read)
				}
				if results <- r; r.err != nil {
					return
				}
				this, other = other, this
			}
		}()
		stopped := false
		for r := range results {
			if !stopped && !yield(r.chunk, r.err) {
				stopped = true
				stop()
			}
		}
	}
}

// alignedBuffer returns memory for reads that bypass the page cache. The memory starts at a page boundary, which is sufficient
// for all drives (open(2), O_DIRECT).
func alignedBuffer(n int) []byte {
	const page = 4096
	b := make([]byte, n+page)
	skip := -uintptr(unsafe.Pointer(&b[0])) % page
	return b[skip:][:n:n]
}

// dataRange returns the offsets of the first and the last block that contain data or cannot be read. Both offsets are -1 if there
// is no such block.
func (c *chunk) dataRange(filler byte) (first, last int64) {
	first, last = -1, -1
	for at, b := range c.blocks() {
		if hasData(b, filler) {
			if first < 0 {
				first = at
			}
			last = at
		}
	}
	return first, last
}

// readUntil reads a disk from its start to its end. readUntil stops earlier if the function "enough" returns true. The parameter
// purpose becomes part of the current step's name.
func (f *diskFile) readUntil(ctx context.Context, purpose string, enough func(chunk) bool) error {
	f.step.set("reading all of %s to %s", f.Name(), purpose)
	direct, err := f.openDisk(f.sysPath, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer direct.release()
	if err := direct.checkSameDisk(f.seq); err != nil {
		return err
	}
	for one, err := range sweep(ctx, 0, f.size, direct.read) {
		switch {
		case ctx.Err() != nil:
			return errorf(Failed, "reading all of %s to %s took too long: allow more time", f.Name(), purpose)
		case err != nil:
			return err
		case enough(one):
			return nil
		}
	}
	return nil
}

// survey reads a disk from an offset to its end, in the idle I/O class and without the page cache. survey stops earlier at a
// block with data, at the time limit, or when the client disconnects. survey does not keep the disk open exclusively, so if
// another process starts to use the disk, the result is [Busy]. A survey does not read random blocks, because a probe has already
// read them, and random reads take too long on a slow disk.
func (t *task) survey(ctx context.Context) error {
	f, err := t.openDisk(t.SysPath, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer f.release()
	if t.From > f.size {
		return errorf(Refused, "%s has only %d bytes: reading cannot continue at byte %d", f.Name(), f.size, t.From)
	}
	a := &t.answer
	a.Size, a.Read = f.size, t.From
	written := sysfs.Written(&t.Tree, f.sysPath)
	if err := t.checkStillUnused(f); err != nil {
		return err
	}
	if err := f.checkNotShared(); err != nil {
		return err
	}
	// A process that has the disk open without O_EXCL could write to blocks that were already read.
	if err := t.checkNotOpen(ctx, f); err != nil {
		return err
	}
	if err := t.readSurvey(ctx, f); err != nil {
		return err
	}
	if sysfs.Written(&t.Tree, f.sysPath) != written { // a process may have opened and closed the disk during the read
		a.Read, a.Content = 0, ""
		return errorf(Busy, "a process wrote to %s while it was read", f.Name())
	}
	if a.Read < f.size {
		return nil
	}
	if err := t.checkNotOpen(ctx, f); err != nil { // the checks before the read are out of date
		return err
	}
	return f.checkNotShared()
}

// recheckInterval is how often a survey checks that no other process has begun to use the disk.
const recheckInterval = time.Second

// readSurvey reads the disk for a survey, and records how many bytes at the start of the disk are blank.
func (t *task) readSurvey(ctx context.Context, f *diskFile) error {
	t.step.set("reading all of %s", f.Name())
	idle := sync.OnceFunc(useIdleIO)
	start := chunk{b: alignedBuffer(int(min(blockSize, f.size)))}
	if err := start.fill(f.read); err != nil {
		return err
	}
	filler := (&surface{chunks: []chunk{start}}).blankByte()
	a, looked := &t.answer, time.Now()
	// Begin at a multiple of the block size. An earlier survey may have stopped at another offset, at the end of a smaller disk.
	for one, err := range sweep(ctx, t.From&^(blockSize-1), f.size, func(b []byte, at int64) error {
		idle()
		return f.read(b, at)
	}) {
		if err != nil && ctx.Err() != nil { // the time ran out before this read; sweep yields each stretch that was read in full
			break
		} else if err != nil {
			return err
		}
		if first, _ := one.dataRange(filler); first >= 0 {
			a.Read = max(a.Read, first)
			if len(one.bad) > 0 && one.bad[0].at == first {
				return one.bad[0].err
			}
			a.Content = unknownData(first)
			break
		}
		a.Read = max(a.Read, one.at+int64(len(one.b)))
		if time.Since(looked) < recheckInterval {
			continue
		}
		looked = time.Now()
		if err := t.checkStillUnused(f); err != nil {
			return err
		}
	}
	return t.checkStillUnused(f)
}

// checkStillUnused checks that the open disk is still the disk at the request's path, that it has no partitions, and that no other
// process has begun to use it. A survey repeats this check while it reads.
func (t *task) checkStillUnused(f *diskFile) error {
	if _, err := f.checkDiskseq(t.SysPath); err != nil {
		return err
	}
	if err := t.checkIdentity(); err != nil {
		return errorf(Gone, "%w", err)
	}
	if len(t.Partitions(t.SysPath)) > 0 {
		return errorf(Busy, "%s has partitions now", f.Name())
	}
	return t.checkExclusive(t.SysPath)
}
