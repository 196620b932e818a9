// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
)

// DiskFacts are the facts about the content of a disk.
type DiskFacts struct {
	Surveyed bool               // whether the node can read disks, so that they are offered on evidence
	Watched  bool               // whether the node can tell which processes have a disk open
	Evidence *evidence.Evidence // or nil
	Presence string             // in which it was seen last, see [evidence.Book.Presence], or empty if another disk could be taken for it
	Recheck  bool               // it was just read in full, and is probed once more before it is offered
}

// Evident reports whether a device is offered only on evidence.
func (f *Facts) Evident() bool {
	return f.Disk.Surveyed && f.Rule != nil && !f.Rule.AllowInUse && f.Seen != nil && f.Seen.Target.IsDisk()
}

// Offerable reports whether a device without a tenant can be offered. It needs no evidence, its evidence is complete, or a
// tenant's data is erased before the next start.
func (f *Facts) Offerable() bool { return !f.Evident() || f.Spared() || f.proven() }

// Complete reports whether the evidence of a disk is complete, but for the processes that have it open.
func (f *Facts) Complete() bool {
	return f.Seen.Offer == nil && !f.Disk.Recheck && f.Disk.Evidence.Proves(f.Disk.Presence)
}

// asked reports whether it is known that no process has had the disk open since it has appeared. A look finds no trace of a
// process that only reads.
func (f *Facts) asked() bool { return !f.Disk.Watched || f.Disk.Evidence.Asked == f.Disk.Presence }

func (f *Facts) proven() bool { return f.Complete() && f.asked() }

// Readable reports whether a disk is to be read for evidence.
func (f *Facts) Readable() bool {
	v := f.Disk.Evidence
	return !f.Lease.Held() && !f.Lease.Used && f.Evident() && f.Seen.Offer == nil && f.Disk.Presence != "" && !f.Spared() &&
		(v == nil || v.Kind == "") && f.Lease.Failure == ""
}

// diskTodo returns the work that the evidence of a disk waits for.
func (f *Facts) diskTodo() Todo {
	v := f.Disk.Evidence
	switch {
	case !f.Evident():
		return Nothing
	case v != nil && v.Scrub != "":
		return EraseAdopted
	case f.Readable() && v != nil && v.Found != "":
		return ReadAgain
	case f.Readable():
		return ReadDisk
	case !f.Lease.Used && f.Complete() && !f.asked():
		return AskHolders
	}
	return Nothing
}

// doubt returns why a disk that is offered on evidence is not proven to be unused, or nil.
func (f *Facts) doubt() error {
	v, offer, d := f.Disk.Evidence, f.Seen.Offer, f.Seen.Device
	if v == nil {
		v = &evidence.Evidence{}
	}
	switch {
	case f.Disk.Presence == "":
		return fmt.Errorf("%w: it has no wwid, serial number or diskseq to know it by; give a virtual disk a serial number, or run Linux 5.15 or later", device.ErrUnproven)
	case v.Scrub != "" && f.Delay != "":
		return fmt.Errorf("%w: adopted, and not erased yet: %s", device.ErrUnproven, f.Delay)
	case v.Scrub != "":
		return fmt.Errorf("%w: adopted, being erased", device.ErrUnproven)
	case offer != nil && v.Proves(f.Disk.Presence):
		return fmt.Errorf("%w: %s, which is not on it any more; run \"udevadm trigger %s\" if this stays", device.ErrUnproven, Content(offer), d.SysPath)
	case offer != nil:
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, Content(offer), Way(d.ID, f.Seen.Target))
	case f.proven():
		return nil
	case f.Delay != "" && (v.Kind != "" || v.Found == ""):
		return fmt.Errorf("%w: %s", device.ErrUnproven, f.Delay)
	case v.Kind != "":
		return fmt.Errorf("%w: being checked", device.ErrUnproven)
	case v.Found != "":
		return fmt.Errorf("%w: %s; %s", device.ErrUnproven, v.Found, Way(d.ID, f.Seen.Target))
	}
	return fmt.Errorf("%w: %s", device.ErrUnproven, v.Reading())
}

// Content returns what is on a disk out of the reason against its offer.
func Content(offer error) string {
	return strings.TrimPrefix(offer.Error(), device.ErrData.Error()+": ")
}

// Way returns the command by which the operator gives a disk with data to pods. An adoption belongs to a medium. Without an
// identity it would count for another disk in its place as well.
func Way(id string, target *device.Target) string {
	if target.Medium() == "" {
		return fmt.Sprintf("metalplugctl reset %s --scrub zero erases and offers it, until it is plugged in again", id)
	}
	return fmt.Sprintf("metalplugctl adopt %s erases and offers it", id)
}
