// SPDX-License-Identifier: Apache-2.0

package reset

// This file prepares a device before a container starts, after a pod has ended, or when the operator orders it. The helper proves
// that the device is free, and then resets it. If the device is a disk, the helper then erases it or proves that it is blank.

import (
	"context"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// prepare checks the device. If the request contains a reset method, prepare then resets the device. If it contains an erase
// method, prepare then erases the disk.
func (t *task) prepare(ctx context.Context) error {
	disk := t.isDisk(t.SysPath)
	switch {
	case t.Scrub != "" && erasures()[t.Scrub].run == nil:
		return errorf(Refused, "invalid scrub %q: must be one of %s", t.Scrub, strings.Join(Erasures(), ", "))
	case t.Method != "" && t.resetter() == nil:
		return errorf(Refused, "invalid method %q: %s", t.Method, knownMethods)
	case (t.Scrub != "" || t.Fingerprint == Blank) && !disk:
		return errorf(Refused, "%s is not a disk, so it cannot be erased or read", t.SysPath)
	case t.Scrub != "" && !t.Tenant && !t.ByHand:
		return errorf(Refused, "erase %s: its content is not from a pod on this node; only the operator may order its erasure: metalplugctl reset ID --scrub %s", t.SysPath, t.Scrub)
	}
	if t.Method != "" || t.Scrub != "" {
		t.seq = t.Uint(t.SysPath, "diskseq") // another disk may replace the selected one before examine opens it
		if err := t.selects(t.Request); err != nil {
			return err
		}
	}
	done, before := "", ""
	if disk {
		fingerprint, err := t.examine(ctx)
		if err != nil {
			return err
		}
		before, t.answer.Appearance = fingerprint, appearanceOf(t.seq)
	}
	if t.Method != "" {
		text, err := t.resetter()(ctx)
		if err == nil {
			err = t.awaitReturn(ctx)
		}
		if err != nil {
			return err
		}
		done = text
		// If the disk has reappeared after the reset, another medium with the same identity may have replaced it. No attribute would
		// show this. The kernel also restarts its count of writes at 0.
		if t.seq == 0 || t.Uint(t.SysPath, "diskseq") != t.seq {
			t.answer.Appearance, t.Written = "", nil
		}
	}
	if t.Scrub != "" {
		text, err := t.erase(ctx, before)
		t.answer.Done = strings.Trim(done+"; "+text, "; ") // one of the texts may be empty
		return err
	}
	name := path.Base(t.SysPath)
	switch {
	case done != "":
	case t.Fingerprint == Blank:
		done = name + " is free, and the quick check found no data"
	case disk:
		done = name + " is free"
	default:
		done = name + " is present"
	}
	t.answer.Done = done
	return nil
}

// appearanceOf formats a diskseq for an answer.
func appearanceOf(seq uint64) string {
	if seq == 0 {
		return ""
	}
	return strconv.FormatUint(seq, 10)
}

// examine proves that a disk is free and that the request may change it. examine returns the fingerprint of the content, or "" if
// it did not read the disk. examine also records the disk's diskseq. The disk is opened only for reading, because udev inspects a
// disk again when a writable descriptor is closed.
func (t *task) examine(ctx context.Context) (fingerprint string, err error) {
	f, err := t.hold(t.SysPath, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.release()
	if err := f.lock(ctx, unix.LOCK_SH); err != nil {
		return "", err
	}
	if err := f.checkSameDisk(t.seq); err != nil {
		return "", err
	}
	if err := t.checkIdentity(); err != nil {
		return "", err
	}
	if err := f.checkNotShared(); err != nil {
		return "", err
	}
	if err := f.checkWritten(t.Written, sysfs.Written(&t.Tree, f.sysPath)); err != nil {
		return "", err
	}
	t.seq, t.answer.Size = f.seq, f.size
	if t.Scrub != "" && t.Uint(f.sysPath, "ro") != 0 {
		return "", errorf(Refused, "%s is read-only", f.Name())
	}
	if t.Fingerprint != Blank && t.Scrub == "" && t.Method == "" || t.Scrub == "sanitize" && f.isUnreadable() {
		return "", nil
	}
	s, err := f.surfaceOf(ctx, f.seed(t.Fingerprint))
	if err != nil {
		return "", err
	}
	return t.checkContent(f, s)
}

// checkWritten returns an error if the number of sectors written differs from the number in the request. The number also changes
// if the disk loses a path.
func (f *diskFile) checkWritten(want *uint64, sectors uint64) error {
	if want != nil && sectors != *want {
		return errorf(Foreign, "a process may have written to %s after the last pod had ended, or after the operator had allowed the erasure", f.Name())
	}
	return nil
}

// checkContent returns an error if the disk contains data that the request does not allow. No data is allowed on a disk that must
// be blank, or that was blank when the last pod ended. Nor is data allowed if it has changed since the operator adopted the disk,
// or since the last pod ended. Only the operator can order metalplug to erase a disk with a known signature.
func (t *task) checkContent(f *diskFile, s *surface) (fingerprint string, err error) {
	fingerprint, content, signs := s.fingerprint(), s.content(), s.signatures()
	blank := t.Fingerprint == Blank || device.LooksBlank(t.Fingerprint)
	if content == "" && len(f.Partitions(f.sysPath)) > 0 && t.Fingerprint == Blank {
		content = knownPartitions
	}
	other, holds := t.Fingerprint != "" && t.Fingerprint != fingerprint, ""
	switch {
	case content == "":
	case blank:
		holds = content + "; if the data is not needed, erase the disk manually: " + byHand
	case t.ByHand && other:
		holds = content + ", which was written after its adoption; if the data is not needed, adopt it again: metalplugctl adopt ID"
	case t.ByHand:
	case len(signs) > 0 && t.Scrub != "":
		holds = signs[0] + ", which metalplug does not erase automatically; if the data is not needed: " + byHand
	case other:
		holds = content + ", which the last pod did not leave there; if the data is not needed, erase the disk manually: " + byHand
	}
	if holds == "" {
		return fingerprint, nil
	}
	if err := s.checkReadable(); err != nil {
		return "", err
	}
	t.answer.Content = content
	return "", errorf(Foreign, "%s holds %s", f.Name(), holds)
}

// byHand is the command that an operator can use to erase a disk.
const byHand = "metalplugctl reset ID --scrub zero"

// knownPartitions describes a blank disk for which the kernel still shows old partitions.
const knownPartitions = "partitions that the kernel has not dropped yet"
