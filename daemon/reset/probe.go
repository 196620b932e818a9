// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
