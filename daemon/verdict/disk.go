// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"errors"
	"fmt"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
)

// DiskFacts are the facts about a disk's content.
type DiskFacts struct {
	Surveyed bool               // whether metalplug can read disks on this node; if not, no evidence is needed
	Watched  bool               // whether metalplug can find out which processes have a disk open
	Evidence *evidence.Evidence // the evidence about the disk, or nil
	// Presence describes the disk's appearance at the last inspection (see [evidence.Book.Presence]). Presence is empty if metalplug
	// cannot distinguish the disk from other disks.
	Presence string
	Recheck  bool // the disk was just read in full, and must be probed once more before it is offered
}

// Evident reports whether the device is a disk that must not be offered without evidence that it is unused.
func (f *Facts) Evident() bool {
	return f.Disk.Surveyed && f.Rule != nil && !f.Rule.AllowInUse && f.Seen != nil && f.Seen.Target.IsDisk()
}

// Offerable reports whether a device without a tenant can be offered. The device must need no evidence or have complete evidence,
// unless its last tenant's data is erased before the next container starts.
func (f *Facts) Offerable() bool { return !f.Evident() || f.OfferedWithData() || f.isProven() }

// Complete reports whether the evidence about a disk is complete. Complete does not consider which processes have the disk open.
func (f *Facts) Complete() bool {
	return f.Seen.Offer == nil && !f.Disk.Recheck && f.Disk.Evidence.Proves(f.Disk.Presence)
}

// holdersChecked reports whether metalplug has checked which processes have the disk open. A check before the last appearance of
// the disk does not count. An inspection cannot detect a process that reads from the disk but does not write to it.
func (f *Facts) holdersChecked() bool {
	return !f.Disk.Watched || f.Disk.Evidence.Asked == f.Disk.Presence
}

func (f *Facts) isProven() bool { return f.Complete() && f.holdersChecked() }

// Unused reports whether valid evidence shows that a device contains nothing that a tenant left. Devices that are not disks need
// no evidence. The result is false for hardware that cannot be identified.
func (f *Facts) Unused() bool {
	switch {
	case !f.Disk.Surveyed, f.Seen == nil:
		return true
	case f.Seen.Target.IsDisk():
		return f.Disk.Evidence.Proves(f.Disk.Presence)
	}
	return !errors.Is(f.Seen.Offer, device.ErrIncomplete)
}

// MustRead reports whether metalplug must read a disk to obtain evidence. If work on an offered disk has failed, metalplug first
// repeats the work.
func (f *Facts) MustRead() bool {
	v := f.Disk.Evidence
	return !f.Lease.Held() && !f.Lease.Used && f.Evident() && f.Seen.Offer == nil && f.Disk.Presence != "" && !f.OfferedWithData() &&
		(v == nil || v.Kind == "") && (f.Lease.Failure == "" || !f.Offered)
}

// diskTodo returns the work needed to complete the evidence about a disk.
func (f *Facts) diskTodo() Todo {
	v := f.Disk.Evidence
	switch {
	case !f.Evident():
		return Nothing
	case v != nil && v.Scrub != "":
		return EraseAdopted
	case f.MustRead() && v != nil && v.Found != "":
		return ReadAgain
	case f.MustRead():
		return ReadDisk
	case !f.Lease.Used && f.Complete() && !f.holdersChecked():
		return AskHolders
	}
	return Nothing
}

// missingEvidence returns why the evidence about a disk is not complete, or nil if it is.
func (f *Facts) missingEvidence() error {
	v, offer, d := f.Disk.Evidence, f.Seen.Offer, f.Seen.Device
	if v == nil {
		v = &evidence.Evidence{}
	}
	switch {
	case f.Disk.Presence == "":
		return fmt.Errorf("%w: the disk has no wwid, serial number or diskseq; give a virtual disk a serial number, or run Linux 5.15 or later", device.ErrUnproven)
	case v.Scrub != "" && f.Delay != "":
		return fmt.Errorf("%w: adopted, and not erased yet: %s", device.ErrUnproven, f.Delay)
	case v.Scrub != "" && f.Cordon != "":
		return fmt.Errorf("%w: adopted; to erase it, run \"metalplugctl uncordon %s\"", device.ErrUnproven, d.ID)
	case v.Scrub != "":
		return fmt.Errorf("%w: adopted, being erased", device.ErrUnproven)
	case offer != nil && v.Proves(f.Disk.Presence):
		return fmt.Errorf("%w: %s, which the disk no longer has; run \"udevadm trigger %s\" if this persists", device.ErrUnproven, Content(offer), d.SysPath)
	case offer != nil:
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, Content(offer), Remedy(d.ID, f.Seen.Target))
	case f.isProven():
		return nil
	case f.Delay != "" && (v.Kind != "" || v.Found == ""):
		return fmt.Errorf("%w: %s", device.ErrUnproven, f.Delay)
	case v.Kind != "":
		return fmt.Errorf("%w: being checked", device.ErrUnproven)
	case v.Found != "":
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, v.Found, Remedy(d.ID, f.Seen.Target))
	}
	return fmt.Errorf("%w: %s", device.ErrUnproven, v.Reading())
}

// Content returns the description of the data on a disk. The parameter "offer" is the error that states why the disk is not
// offered.
func Content(offer error) string {
	return strings.TrimPrefix(offer.Error(), device.ErrData.Error()+": ")
}

// Remedy returns the command that makes a disk available to pods even though it contains data. A disk with an identity can be
// adopted. A disk without an identity must be reset instead, because an adoption would also apply to a disk that later takes its
// place.
func Remedy(id string, target *device.Target) string {
	if target.Medium() == "" {
		return fmt.Sprintf("metalplugctl reset %s --scrub zero erases and offers the disk", id)
	}
	return fmt.Sprintf("metalplugctl adopt %s erases and offers the disk", id)
}
