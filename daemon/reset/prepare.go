// SPDX-License-Identifier: Apache-2.0

package reset

// The work that a start of a pod, a release and the operator ask for proves a device free, resets it, and erases it or proves
// it blank.

import (
	"context"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// prepare does what the request asks for. It proves, resets and erases, in this order.
func (h *host) prepare(ctx context.Context, r Request, disk bool, a *Answer) error {
	_, erasable := erasures()[r.Scrub]
	switch {
	case r.Scrub != "" && !erasable:
		return errorf(Refused, "invalid scrub %q: must be one of %s", r.Scrub, strings.Join(Erasures(), ", "))
	case r.Method != "" && h.resetter(r.Method) == nil:
		return errorf(Refused, "invalid method %q: %s", r.Method, knownMethods)
	case (r.Scrub != "" || r.Fingerprint == Blank) && !disk:
		return errorf(Refused, "%s is not a disk: there is nothing to erase or to read", r.SysPath)
	case r.Scrub != "" && !r.Tenant && !r.ByHand:
		return errorf(Refused, "erase %s: no pod of this node left what is on it; only the operator may have it erased: metalplugctl reset ID --scrub %s", r.SysPath, r.Scrub)
	}
	if r.Method != "" || r.Scrub != "" {
		if err := h.selects(r); err != nil {
			return err
		}
	}
	if disk {
		return h.prepareDisk(ctx, r, a)
	}
	if r.Method == "" {
		a.Done = path.Base(r.SysPath) + " is there"
		return nil
	}
	done, err := h.reset(ctx, r)
	a.Done = done
	return err
}

func (h *host) prepareDisk(ctx context.Context, r Request, a *Answer) error {
	before, err := h.examine(ctx, &r, a)
	if err != nil {
		return err
	}
	var done []string
	a.Appearance = appearanceOf(r.seq)
	if r.Method != "" {
		text, err := h.reset(ctx, r)
		if err != nil {
			return err
		}
		done = append(done, text)
		if r.Scrub == "" {
			a.Appearance = h.proven(r)
		}
	}
	if r.Scrub != "" {
		text, err := h.erase(ctx, r, before, a)
		if err != nil {
			a.Done = strings.Join(append(done, text), "; ")
			return err
		}
		done = append(done, text)
	}
	if len(done) == 0 {
		done = append(done, path.Base(r.SysPath)+" is free")
		if r.Fingerprint == Blank {
			done[0] += " and blank, as far as the quick check reads"
		}
	}
	a.Done = strings.Join(done, "; ")
	return nil
}

// appearanceOf returns a diskseq as answers have it.
func appearanceOf(seq uint64) string {
	if seq == 0 {
		return ""
	}
	return strconv.FormatUint(seq, 10)
}

// examine proves that a disk is free and may be touched, and returns the fingerprint of what is on it. The fingerprint is
// empty if the disk was not or could not be read. A look leaves no trace. The disk is open to read only, for udev inspects a
// disk again when a descriptor for writing is closed. It notes in r which disk it was.
func (h *host) examine(ctx context.Context, r *Request, a *Answer) (print string, err error) {
	c, err := h.hold(r.SysPath, readOnly)
	if err != nil {
		return "", err
	}
	defer c.release()
	if err := c.lock(ctx, shared); err != nil {
		return "", err
	}
	if err := h.identified(*r); err != nil {
		return "", err
	}
	if err := c.shared(); err != nil {
		return "", err
	}
	r.seq, a.Size = c.seq, c.size
	if r.Scrub != "" && h.Uint(c.sysPath, "ro") != 0 {
		return "", errorf(Refused, "%s is read-only", c.name())
	}
	if r.Written != nil && sysfs.Written(&h.Tree, c.sysPath) > *r.Written {
		return "", errorf(Foreign, "a process wrote to %s after its last pod had gone or the operator allowed to erase it", c.name())
	}
	if r.Fingerprint != Blank && r.Scrub == "" && r.Method == "" || c.withheld(*r) {
		return "", nil
	}
	s, err := c.surfaceOf(ctx, h.seedOf(*r))
	if err != nil {
		return "", err
	}
	return c.allowed(*r, s, a)
}

// withheld reports whether a sanitize keeps the disk from being read that is to be sanitized.
func (c *claim) withheld(r Request) bool { return r.Scrub == "sanitize" && c.unreadable() }

// allowed refuses a disk that is not blank where it must be, and to erase data that no pod left there.
func (c *claim) allowed(r Request, s *surface, a *Answer) (print string, err error) {
	print, content, signs := s.fingerprint(), s.content(), s.signs()
	if content == "" && len(c.partitions) > 0 && r.Fingerprint == Blank {
		content = knownPartitions
	}
	other, holds := r.Fingerprint != "" && r.Fingerprint != print, ""
	switch {
	case content == "":
	case r.Fingerprint == Blank:
		holds = content + "; if no one needs that, erase it by hand: " + byHand
	case r.ByHand && other:
		holds = content + ", which was written after its adoption; if no one needs that, adopt it again: metalplugctl adopt ID"
	case r.ByHand:
	case len(signs) > 0 && r.Scrub != "":
		holds = signs[0] + ", which is erased by hand only; if no one needs it: " + byHand
	case r.Tenant && other:
		holds = content + ", which its last pod did not leave there; if no one needs it, erase it by hand: " + byHand
	}
	if holds == "" {
		return print, nil
	}
	if err := s.readable(); err != nil {
		return "", err
	}
	a.Content = content
	return "", errorf(Foreign, "%s holds %s", c.name(), holds)
}

// byHand is how an operator erases a disk.
const byHand = "metalplugctl reset ID --scrub zero"

// knownPartitions is the content of a blank disk of which the kernel still has partitions.
const knownPartitions = "partitions that the kernel still knows of"

// readUntil reads a disk from its first byte until a part of it is enough, or to the end. purpose says to people why.
func (c *claim) readUntil(ctx context.Context, purpose string, enough func(chunk) bool) error {
	c.step.is("reading all of %s to know %s", c.name(), purpose)
	direct, err := c.look(c.sysPath, readOnly|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer direct.release()
	if direct.seq != c.seq {
		return errorf(Gone, "another disk has taken the place of %s: its diskseq is %d, not %d", c.name(), direct.seq, c.seq)
	}
	err = sweep(ctx, 0, c.size, direct.reading(), func(one chunk) error {
		if enough(one) {
			return errEnough
		}
		return nil
	})
	switch {
	case err == errEnough:
		return nil
	case ctx.Err() != nil:
		return errorf(Failed, "reading all of %s to know %s was not over in time: nothing was erased; allow more time", c.name(), purpose)
	}
	return err
}

// proven returns the diskseq of a disk after a reset if the disk has not appeared again, else "". Another medium with the same
// identity may be in its place then, and no attribute tells the one from the other.
func (h *host) proven(r Request) string {
	if r.seq == 0 || h.Uint(r.SysPath, "diskseq") != r.seq {
		return ""
	}
	return appearanceOf(r.seq)
}
