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

// probe reads a disk, and changes nothing. It does not hold the disk for that. The mkfs in "mkfs DISK && mount DISK" of an
// operator makes us look, and the mount must not fail because of it.
func (h *host) probe(ctx context.Context, r Request, a *Answer) error {
	h.step.is("reading what %s says of itself", path.Base(r.SysPath))
	c, err := h.look(r.SysPath, readOnly)
	if err != nil {
		return err
	}
	defer c.release()
	if err := c.describe(a); err != nil {
		return err
	}
	if err := h.unused(c.disk); err != nil || r.Do == Look {
		return err
	}
	if err := c.lock(ctx, shared); err != nil {
		return err
	}
	err = c.contentOf(ctx, r, a)
	a.Claimed = errors.Is(err, errClaimed)
	return err
}

// describe asks a disk, which may be in use.
func (c *claim) describe(a *Answer) error {
	if !c.IsNVMe(c.sysPath) {
		return nil
	}
	a.Smart = c.smart(c.fd)
	if s, err := c.sanitizing(); err == nil && s.status == sanitizeRunning {
		return errorf(Running, "a sanitize of %s goes on (%d %%): nothing can be read", c.name(), s.percent())
	}
	return c.shared()
}

// contentOf reads an open disk. A disk that would be offered, blank or with any content, is held for a moment to find out
// whether another process holds it. A process that did so for a moment may have written to it.
func (c *claim) contentOf(ctx context.Context, r Request, a *Answer) error {
	waiting, cancel := context.WithTimeout(ctx, claimedFor)
	defer cancel()
	for claimed := false; ; {
		err := c.contentIn(ctx, r, a)
		if err != nil || a.Content != "" && r.Do != Offer {
			return err
		}
		err = c.holdable(r.SysPath)
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

// contentIn describes the content of an open disk as it was read, and its partitions.
func (c *claim) contentIn(ctx context.Context, r Request, a *Answer) error {
	if err := c.identified(r); err != nil {
		return err
	}
	a.Content, a.Fingerprint, a.Size = "", "", c.size
	s, err := c.surfaceOf(ctx, c.seedOf(r))
	if err != nil {
		return err
	}
	if err := s.readable(); err != nil {
		return err
	}
	content := s.content()
	if content != "" {
		a.Fingerprint = s.fingerprint()
	} else if len(c.partitions) > 0 {
		content = knownPartitions
	}
	a.Content = content
	return nil
}

// vfioBound reports whether a PCI function has a VFIO driver.
func (h *host) vfioBound(function string) bool {
	return function != "" && strings.Contains(strings.ReplaceAll(h.Link(function, "driver"), "-", "_"), "vfio_pci")
}

// Reading a disk from one end to the other.

const (
	stretch = 4 << 20 // bytes of one read
	abreast = 2       // reads at once
)

// errEnough ends a reading that has found what it was for.
var errEnough = errors.New("enough")

// sweep reads a disk of a size from a byte to its end and calls f for each stretch, in their order, until one of both fails or
// ctx ends. f must not keep the bytes.
func sweep(ctx context.Context, from, size int64, read func(b []byte, at int64) error, f func(c chunk) error) error {
	buffer := aligned(abreast * stretch)
	for at := from; at < size; {
		var all []chunk
		for ; len(all) < abreast && at < size; at += stretch {
			all = append(all, chunk{at: at, b: buffer[len(all)*stretch:][:min(stretch, size-at)]})
		}
		if err := together(ctx, all, read); err != nil {
			return err
		}
		for _, one := range all {
			if err := f(one); err != nil {
				return err
			}
		}
	}
	return nil
}

// aligned returns memory for reads past the page cache. It begins at a page, which suits each drive (open(2), O_DIRECT).
func aligned(n int) []byte {
	const page = 4096
	b := make([]byte, n+page)
	skip := -uintptr(unsafe.Pointer(&b[0])) % page
	return b[skip:][:n:n]
}

// filled returns where the first and the last block begin that hold something, or cannot be read, or -1.
func (c *chunk) filled(filler byte) (first, last int64) {
	first, last = -1, -1
	for at, b := range c.blocks() {
		if !holds(b, filler) {
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
// holds something, when the time is up, and when the asker has gone. It holds no claim, so that another process may begin to
// use the disk. Then it ends as [Busy]. It takes no samples, as a probe has done that, and on a slow disk they take all of the
// time.
func (h *host) survey(ctx context.Context, r Request, a *Answer) error {
	c, err := h.look(r.SysPath, readOnly|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer c.release()
	if r.From > c.size {
		return errorf(Refused, "%s has %d bytes: there is no byte %d to read on from", c.name(), c.size, r.From)
	}
	a.Size, a.Read = c.size, r.From
	written := sysfs.Written(&h.Tree, c.sysPath)
	if err := cmp.Or(c.untaken(r), c.shared()); err != nil {
		return err
	}
	if c.unallocated() {
		a.Read = c.size
		return c.untaken(r)
	}
	// A process that has the disk open without a claim could write behind the place that is read.
	if err := c.unheld(ctx, r); err != nil {
		return err
	}
	if err := c.readOn(ctx, r, a); err != nil {
		return err
	}
	if sysfs.Written(&h.Tree, c.sysPath) != written { // a process may have come and gone while the disk was read
		a.Read, a.Content = 0, ""
		return errorf(Busy, "a process wrote to %s while it was read", c.name())
	}
	if a.Read < c.size {
		return nil
	}
	return cmp.Or(c.unheld(ctx, r), c.shared()) // reading the disk has taken its time
}

// unallocated reports whether the drive says that no block of the namespace is in use. With thin provisioning NUSE counts
// those in use (NVM Command Set Specification 1.0, figure 97, NSFEAT bit 0 and NUSE).
func (c *claim) unallocated() bool {
	if !c.IsNVMe(c.sysPath) {
		return false
	}
	ns, err := c.namespace()
	return err == nil && ns.thin && ns.used == 0
}

// watchEvery is how often a survey checks that no one has begun to use the disk.
const watchEvery = time.Second

func (c *claim) readOn(ctx context.Context, r Request, a *Answer) error {
	c.step.is("reading all of %s", c.name())
	quietly := func(b []byte, at int64) error {
		runtime.LockOSThread() // which is what the kernel counts as idle
		defer runtime.UnlockOSThread()
		c.idle()
		return c.readFrom(c.fd, c.name(), b, at)
	}
	start := []chunk{{b: aligned(int(min(blockSize, c.size)))}}
	if err := together(ctx, start, quietly); err != nil {
		return err
	}
	filler := (&surface{chunks: start}).filler()
	looked := time.Now()
	// It begins at a whole block, as an earlier survey may have ended at the end of a smaller disk.
	err := sweep(ctx, r.From&^(blockSize-1), c.size, quietly, func(one chunk) error {
		if first, _ := one.filled(filler); first >= 0 {
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
		return c.untaken(r)
	})
	switch {
	case err == nil, err == errEnough, ctx.Err() != nil:
		return c.untaken(r)
	}
	return err
}

// untaken checks that a disk which is read for long is the same, and that no one has begun to use it.
func (c *claim) untaken(r Request) error {
	now := *c // which is being read
	if err := now.inspect(r.SysPath); err != nil {
		return err
	}
	if err := c.unused(now.disk); err != nil {
		return err
	}
	if err := c.identified(r); err != nil {
		return errorf(Gone, "%w", err)
	}
	if len(now.partitions) > 0 {
		return errorf(Busy, "%s has partitions now", c.name())
	}
	return c.holdable(r.SysPath)
}
