// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"path"
	"slices"
	"time"
)

// back waits until a device that was reset or erased is there again, is the same, and works. What cannot be told by its
// attributes counts as working.
func (h *host) back(ctx context.Context, r Request) error {
	h.step.is("waiting for %s to come back", path.Base(r.SysPath))
	r = r.anyAppearance()
	for {
		err := h.works(r)
		if err == nil {
			return nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return errorf(resultOf(err), "%s has not come back: %w", path.Base(r.SysPath), err)
		}
	}
}

// anyAppearance is the request without the diskseq: a disk that appears again has another one.
func (r Request) anyAppearance() Request {
	r.Identity = slices.DeleteFunc(slices.Clone(r.Identity), func(a Attribute) bool { return path.Base(a.Name) == "diskseq" })
	return r
}

// works returns nil if the device is there and works, or what is the matter.
func (h *host) works(r Request) error {
	if err := h.find(r.asProbe()); err != nil {
		return err
	}
	if h.Link(r.SysPath, "subsystem") != "block" {
		return h.answers(h.Above(r.SysPath, "pci"))
	}
	if size, err := h.Attr(r.SysPath, "size"); err == nil && size == "0" {
		return errorf(Gone, "%s has no size", path.Base(r.SysPath))
	}
	if !h.IsNVMe(r.SysPath) {
		return nil
	}
	controllers, err := h.controllersOf(r.SysPath)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if state, err := h.Attr(c, "state"); err != nil || state != "live" {
			return errorf(Failed, "controller %s is %q", path.Base(c), state)
		}
	}
	return nil
}

// asProbe is the request for which nothing has to identify the device.
func (r Request) asProbe() Request {
	r.Op = Probe
	return r
}

// answers tells whether a PCI function answers: one that does not reads as ones everywhere (PCI_SET_ERROR_RESPONSE).
func (h *host) answers(function string) error {
	if function == "" {
		return nil
	}
	const vendor = 2 // bytes, at the beginning
	start, err := h.ReadStart(function+"/config", vendor)
	if err != nil {
		return err
	}
	if start == "\xff\xff" {
		return errorf(Gone, "%s does not answer", path.Base(function))
	}
	return nil
}
