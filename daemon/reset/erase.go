// SPDX-License-Identifier: Apache-2.0

package reset

// Making what is on a disk unreadable. Whatever the method, the disk is held exclusively and locked against udev before
// anything is written, looked at again then, and read afterwards.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// erasure is one method on a disk that is held. It returns what it has done, in words.
type erasure struct {
	promise promise
	run     func(ctx context.Context, r Request, c *claim, a *Answer) (done string, err error)
}

// everyErasure is all methods by their names.
func (h *host) everyErasure() map[string]erasure {
	return map[string]erasure{
		"discard":        {mustVanish, h.discard},
		"secure-discard": {mustChange, h.secureDiscard},
		"zero":           {mustBeZero, h.zero},
		"format":         {mustChange, h.formatUserData},
		"crypto-erase":   {mustChange, h.formatCrypto},
		"sanitize":       {mustChange, h.sanitize},
	}
}

// Erasures are the names of the methods by which a disk is erased, where it can be by that.
func Erasures() []string { return slices.Sorted(maps.Keys((&host{}).everyErasure())) }

func (h *host) erase(ctx context.Context, r Request, a *Answer) error {
	e, ok := h.everyErasure()[r.Method]
	if !ok {
		return errorf(Refused, "%q is no way to erase", r.Method)
	}
	if h.Link(r.SysPath, "subsystem") != "block" {
		return errorf(Refused, "%s is no disk: there is nothing to erase", r.SysPath)
	}
	// First without being able to write: for udev to look again at a disk that is left alone would be noise.
	if err := h.lookAt(ctx, r); err != nil {
		return err
	}
	c, err := h.hold(r.SysPath, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer h.release(c)
	if err := h.lock(ctx, c, unix.LOCK_EX); err != nil {
		return err
	}
	if err := h.clearedFor(r, c); err != nil {
		return err
	}
	return h.eraseHeld(ctx, r, c, e, a)
}

// lookAt makes sure that a disk may be touched, without a trace.
func (h *host) lookAt(ctx context.Context, r Request) error {
	c, err := h.hold(r.SysPath, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer h.release(c)
	if err := h.lock(ctx, c, unix.LOCK_SH); err != nil {
		return err
	}
	return h.clearedFor(r, c)
}

// clearedFor makes sure that a disk that is held is the one that is meant and that nothing on it must be kept.
func (h *host) clearedFor(r Request, c *claim) error {
	if err := h.identified(r); err != nil {
		return err
	}
	if h.Uint(c.sysPath, "ro") != 0 {
		return errorf(Refused, "%s is read-only", c.name())
	}
	if err := h.shared(c); err != nil {
		return err
	}
	return h.nothingKept(r, c)
}

// nothingKept refuses a disk with anything on it that no pod has left behind.
func (h *host) nothingKept(r Request, c *claim) error {
	switch {
	case r.Method == "sanitize" && h.unreadable(c), r.Leftover && r.Print == 0:
		return nil
	case r.Leftover:
		return h.sameContent(r, c)
	}
	if n := len(c.partitions); n > 0 {
		return errorf(Refused, "%s has partitions (%s, …): erase it by hand if nobody needs them", c.name(), path.Base(c.partitions[0]))
	}
	h.step.is("reading %s", c.name())
	s, err := h.surfaceOf(c)
	if err != nil {
		return err
	}
	content, err := s.content()
	if err == nil && content != "" {
		err = errorf(Foreign, "%s holds %s, and no pod has left that: erase it by hand if nobody needs it", c.name(), content)
	}
	return err
}

// sameContent refuses a disk that somebody has written to since it was last looked at. One that is blank may be: then
// there is nothing to lose.
func (h *host) sameContent(r Request, c *claim) error {
	h.step.is("reading %s", c.name())
	s, err := h.surfaceOf(c)
	if err != nil {
		return err
	}
	content, err := s.content()
	if err != nil || content == "" {
		return err
	}
	print, err := s.print()
	if err == nil && print != r.Print {
		err = errorf(Foreign, "%s holds %s, which its last pod has not left there: erase it by hand if nobody needs it", c.name(), content)
	}
	return err
}

// eraseHeld erases and verifies.
func (h *host) eraseHeld(ctx context.Context, r Request, c *claim, e erasure, a *Answer) error {
	if err := h.flush(c); err != nil { // or what is cached would be written later
		return err
	}
	before, err := h.fingerprints(r, c)
	if err != nil {
		return err
	}
	if err := h.free(c); err != nil {
		return err
	}
	h.step.is("erasing %s by %s", c.name(), r.Method)
	done, err := e.run(ctx, r, c, a)
	if err != nil {
		return err
	}
	a.Done = done
	if err := errors.Join(h.back(ctx, r), h.sameSize(c)); err != nil {
		return err
	}
	h.step.is("reading %s back", c.name())
	seen, err := h.verify(c, e.promise, before)
	if err != nil {
		return err
	}
	a.Done += "; " + seen
	return h.forgetPartitions(c)
}

// forgetPartitions makes the kernel see that there are no partitions any more: it does not look by itself.
func (h *host) forgetPartitions(c *claim) error {
	if len(c.partitions) == 0 {
		return nil
	}
	if _, err := h.ioctl(c.fd, blkRRPart, 0); err != nil {
		return errorf(Failed, "read the partition table of %s again: %w", c.name(), err)
	}
	return nil
}

// Bytes that one ioctl is about. Between two of them the time is looked at, and a signal ends the program.
const (
	discardChunk = 1 << 30
	zeroChunk    = 64 << 20 // a tenth of a second where zeroes are really written
)

func (h *host) discard(ctx context.Context, r Request, c *claim, _ *Answer) (string, error) {
	return fmt.Sprintf("discarded %d bytes", c.size), h.inChunks(ctx, c, "discard", discardChunk, h.blkDiscard)
}

func (h *host) secureDiscard(ctx context.Context, r Request, c *claim, _ *Answer) (string, error) {
	return fmt.Sprintf("securely discarded %d bytes", c.size), h.inChunks(ctx, c, "secure discard", discardChunk, h.blkSecDiscard)
}

func (h *host) zero(ctx context.Context, r Request, c *claim, _ *Answer) (string, error) {
	return fmt.Sprintf("wrote zeroes over %d bytes", c.size), h.inChunks(ctx, c, "write zeroes", zeroChunk, h.blkZeroOut)
}

// inChunks does something with all of a disk, piece by piece.
func (h *host) inChunks(ctx context.Context, c *claim, what string, chunk int64, do func(fd int, from, length int64) error) error {
	began := time.Now()
	for from := int64(0); from < c.size; from += chunk {
		if ctx.Err() != nil {
			return errorf(Failed, "%s on %s: %d of %d bytes in %v: allow more time", what, c.name(), from, c.size, time.Since(began).Round(time.Second))
		}
		err := do(c.fd, from, min(chunk, c.size-from))
		switch {
		case err == nil:
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
			return errorf(Unsupported, "%s on %s: %w", what, c.name(), err)
		default:
			return commandError(fmt.Sprintf("%s on %s at byte %d", what, c.name(), from), err)
		}
	}
	return nil
}

func (h *host) blkDiscard(fd int, from, length int64) error {
	return h.ranged(fd, blkDiscard, from, length)
}

func (h *host) blkSecDiscard(fd int, from, length int64) error {
	return h.ranged(fd, blkSecDiscard, from, length)
}

func (h *host) blkZeroOut(fd int, from, length int64) error {
	return h.ranged(fd, blkZeroOut, from, length)
}

// ranged makes an ioctl with uint64_t range[2].
func (h *host) ranged(fd int, request uintptr, from, length int64) error {
	b := binary.NativeEndian.AppendUint64(nil, uint64(from))
	_, err := h.ioctlOn(fd, request, binary.NativeEndian.AppendUint64(b, uint64(length)))
	return err
}
