// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"cmp"
	"context"
	"errors"
	"path"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// probe reads, and changes nothing. Of another device than a disk it finds only that it is there: to open its node might
// disturb a process, or reset the device (afu_release in drivers/fpga/dfl-afu-main.c).
func (h *host) probe(ctx context.Context, r Request, a *Answer) error {
	if h.Link(r.SysPath, "subsystem") == "block" {
		return h.probeDisk(ctx, r, a)
	}
	return nil
}

func (h *host) probeDisk(ctx context.Context, r Request, a *Answer) error {
	d, err := h.diskAt(r.SysPath)
	if err != nil {
		return err
	}
	h.step.is("reading what %s says of itself", d.name())
	if err := h.describe(r.SysPath, a); err != nil {
		return err
	}
	if err := h.unused(d); err != nil || r.Held {
		return err
	}
	err = h.contentOf(ctx, r, a)
	a.Claimed = errors.Is(err, errClaimed)
	return err
}

// describe opens the disk just to read: somebody may use it.
func (h *host) describe(sysPath string, a *Answer) error {
	fd, err := h.opened(sysPath, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer h.close(fd)
	if _, err := h.sameAppearance(fd, sysPath); err != nil {
		return err
	}
	c := &claim{disk: disk{sysPath: sysPath}, fd: fd}
	if !h.IsNVMe(sysPath) {
		return nil
	}
	a.Smart = h.smart(fd)
	if s, err := h.sanitizing(c); err == nil && s.status == sanitizeRunning {
		return errorf(Running, "a sanitize of %s goes on (%d %%): nothing can be read", path.Base(sysPath), s.percent())
	}
	return h.shared(c)
}

// contentOf reads a disk when nobody is at work on it, and does not hold it for that: "mkfs DISK && mount DISK" of an
// operator, of which the first makes us look, must not fail at the second because we do. That an earlier request of ours,
// which the kernel did not let go of, holds it still is no sign of anybody using it.
func (h *host) contentOf(ctx context.Context, r Request, a *Answer) error {
	return h.alone(ctx, r.SysPath, func(c *claim) error {
		if err := h.lock(ctx, c, shared); err != nil {
			return err
		}
		return h.contentOfFree(ctx, r, c, a)
	})
}

// alone opens a disk to read it while no other request is at work on the disk. Else the result is [Late].
func (h *host) alone(ctx context.Context, sysPath string, read func(c *claim) error) error {
	unlock, err := h.only(ctx, sysPath)
	if errors.Is(err, Busy) {
		return errorf(Late, "%w", err)
	} else if err != nil {
		return err
	}
	defer unlock()
	c, err := h.look(sysPath)
	if err != nil {
		return err
	}
	defer h.release(c)
	return read(c)
}

// contentOfFree reads an open disk. One that would be offered, as it is blank or whatever is on it, is held for a
// moment, to find out whether somebody else holds it; who does for a moment may have written to it.
func (h *host) contentOfFree(ctx context.Context, r Request, c *claim, a *Answer) error {
	waiting, cancel := context.WithTimeout(ctx, claimedFor)
	defer cancel()
	for claimed := false; ; {
		err := h.contentIn(ctx, r, c, a)
		if err != nil || a.Content != "" && !r.Offered {
			return err
		}
		err = h.holdable(r.SysPath)
		switch {
		case errors.Is(err, errClaimed) && pause(waiting, 20*time.Millisecond):
			claimed = true
		case err == nil && claimed:
			claimed = false // and now read what was written
		default:
			return err
		}
	}
}

// contentIn describes what is on an open disk: what was read, and its partitions.
func (h *host) contentIn(ctx context.Context, r Request, c *claim, a *Answer) error {
	if err := h.identified(r); err != nil {
		return err
	}
	a.Content, a.Fingerprint, a.Size = "", "", c.size
	s, err := h.surfaceOf(ctx, c, h.seedOf(r))
	if err != nil {
		return err
	}
	if err := s.readable(); err != nil {
		return err
	}
	content := s.content()
	if content != "" {
		a.Fingerprint = s.fingerprint().String()
	} else if len(c.partitions) > 0 {
		content = knownPartitions
	}
	a.Content = content
	return nil
}

// vfioBound tells whether a PCI function is in the hands of user space.
func (h *host) vfioBound(function string) bool {
	return function != "" && strings.Contains(strings.ReplaceAll(h.Link(function, "driver"), "-", "_"), "vfio_pci")
}

// Reading a disk from one end to the other.

// stretch is how much is read at once.
const stretch = 4 << 20

// errEnough ends a reading that has found what it was for.
var errEnough = errors.New("enough")

// reader reads a disk in stretches. While one is looked at, the next is read.
type reader struct {
	size  int64
	quiet func() // makes the reading thread a quiet one; nil: it is as urgent as any
	read  func(b []byte, at int64) error
}

// each calls f for all stretches in their order, until one of both fails or ctx ends. f must not keep the bytes.
func (r reader) each(ctx context.Context, from int64, f func(c chunk) error) error {
	type stretched struct {
		chunk
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	free, full := make(chan []byte, 2), make(chan stretched)
	for range cap(free) {
		free <- aligned(stretch)
	}
	go func() {
		defer close(full)
		if r.quiet != nil {
			runtime.LockOSThread() // and the thread ends with this function
			r.quiet()
		}
		for at := from; at < r.size && ctx.Err() == nil; at += stretch {
			one := stretched{chunk: chunk{at: at, b: (<-free)[:min(stretch, r.size-at)]}}
			one.err = mistakes(func() error { return one.fill(r.read) })
			full <- one
		}
	}()
	defer func() {
		cancel()
		for range full { // the last read has to end before the disk is closed
		}
	}()
	for one := range full {
		err := one.err
		if err == nil {
			err = f(one.chunk)
		}
		if err != nil {
			return err
		}
		free <- one.b[:stretch]
	}
	return nil
}

// aligned returns memory that may be read into past the page cache: it begins at a page, which suits each drive (open(2),
// O_DIRECT).
func aligned(n int) []byte {
	const page = 4096
	b := make([]byte, n+page)
	skip := -uintptr(unsafe.Pointer(&b[0])) % page
	return b[skip:][:n:n]
}

// filled returns where the first and the last block begin that hold something, or cannot be read; -1: none.
func (c *chunk) filled() (first, last int64) {
	first, last = -1, -1
	for at, b := range c.blocks() {
		if blank(b) {
			continue
		}
		if first < 0 {
			first = at
		}
		last = at
	}
	return first, last
}

// survey reads a disk from a byte to its end, in the idle I/O class and past the page cache. It ends at the first block that
// holds something, when the time is up, and when the asker has gone. It holds no claim: whoever begins to use the disk may,
// and then it ends as [Busy]. It takes no samples: a probe has done that, and on a slow disk they take all of the time.
func (h *host) survey(ctx context.Context, r Request, a *Answer) error {
	if h.Link(r.SysPath, "subsystem") != "block" {
		return errorf(Refused, "%s is not a disk: there is nothing to read", r.SysPath)
	}
	return h.alone(ctx, r.SysPath, func(c *claim) error { return h.surveyDisk(ctx, r, c, a) })
}

func (h *host) surveyDisk(ctx context.Context, r Request, c *claim, a *Answer) error {
	if r.From > c.size {
		return errorf(Refused, "%s has %d bytes: there is no byte %d to read on from", c.name(), c.size, r.From)
	}
	a.Size, a.Read = c.size, r.From
	written := sysfs.Written(&h.Tree, c.sysPath)
	if err := cmp.Or(h.untaken(r, c), h.shared(c)); err != nil {
		return err
	}
	if h.unallocated(c) {
		a.Read = c.size
		return h.untaken(r, c)
	}
	// A process that has the disk open without a claim could write behind the place that is read.
	if err := h.unheld(ctx, r, c); err != nil {
		return err
	}
	if err := h.readOn(ctx, r, c, a); err != nil {
		return err
	}
	if sysfs.Written(&h.Tree, c.sysPath) != written { // a process may have come and gone while the disk was read
		a.Read, a.Content = 0, ""
		return errorf(Busy, "a process wrote to %s while it was read", c.name())
	}
	if a.Read < c.size {
		return nil
	}
	return cmp.Or(h.unheld(ctx, r, c), h.shared(c)) // reading the disk has taken its time
}

// unallocated reports whether the drive says that no block of the namespace is in use: with thin provisioning NUSE counts
// those that are (NVM Command Set Specification 1.0, figure 97: NSFEAT bit 0, NUSE).
func (h *host) unallocated(c *claim) bool {
	if !h.IsNVMe(c.sysPath) {
		return false
	}
	nsid, err := h.nsid(c.fd)
	if err != nil {
		return false
	}
	ns, err := h.namespaceOf(c.fd, nsid)
	return err == nil && ns.thin && ns.used == 0
}

// watchEvery is how often a survey checks that no one has begun to use the disk.
const watchEvery = time.Second

func (h *host) readOn(ctx context.Context, r Request, c *claim, a *Answer) error {
	h.step.is("reading all of %s", c.name())
	read, done := h.directly(c)
	defer done()
	looked := time.Now()
	// Whole blocks: an earlier survey may have ended at the end of a smaller disk.
	err := reader{c.size, h.idle, read}.each(ctx, r.From&^(blockSize-1), func(one chunk) error {
		if first, _ := one.filled(); first >= 0 {
			a.Read = max(a.Read, first)
			if len(one.bad) > 0 && one.bad[0].at == first {
				return one.bad[0].err
			}
			a.Content = unknownData(first)
			return errEnough
		}
		a.Read = max(a.Read, one.at+int64(len(one.b)))
		if time.Since(looked) < watchEvery {
			return nil
		}
		looked = time.Now()
		return h.untaken(r, c)
	})
	switch {
	case err == nil, err == errEnough, ctx.Err() != nil:
		return h.untaken(r, c)
	}
	return err
}

// untaken checks that a disk which is read for long is the same, and that no one has begun to use it.
func (h *host) untaken(r Request, c *claim) error {
	now := *c // which is being read
	if err := h.inspect(&now, r.SysPath); err != nil {
		return err
	}
	if err := h.identified(r); err != nil {
		return errorf(Gone, "%w", err)
	}
	if len(now.partitions) > 0 {
		return errorf(Busy, "%s has partitions now", c.name())
	}
	return h.holdable(r.SysPath)
}

// directly returns a function that reads a held disk past the page cache, or through it where the node refuses that.
func (h *host) directly(c *claim) (read func(b []byte, at int64) error, done func()) {
	through := h.reading(c)
	fd, err := h.opened(c.sysPath, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return through, func() {}
	}
	if seq, err := h.sameAppearance(fd, c.sysPath); err != nil || seq != c.seq {
		h.close(fd)
		return through, func() {}
	}
	return func(b []byte, at int64) error {
		err := h.readFrom(fd, c.name(), b, at)
		if errors.Is(err, unix.EINVAL) {
			err = through(b, at)
		}
		return err
	}, func() { h.close(fd) }
}
