// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// known contains the facts about a device that remain valid after metalplugd restarts.
type known struct {
	evidence.Disk
	// Fingerprint identifies the data that the last tenant left on the disk (see [device.Report]). Fingerprint is empty if unknown.
	Fingerprint string          `json:"fingerprint,omitempty"`
	Wrote       evidence.Writes `json:"wrote,omitzero"` // number of sectors written at the last inspection, or zero if unknown
	// Initialised is the name of the init unit ([device.Rule].Init) that has run since the hardware last appeared.
	Initialised string `json:"initialised,omitempty"`
	// Claims contains the claims that hold the device until the kubelet releases them. metalplug must save them, because the
	// kubelet's records of device plugins do not contain claims.
	Claims lease.Claims `json:"claim,omitempty"`
	// Given contains the paths of the device nodes that the device's pods got. The slice is never modified, only replaced.
	Given []string `json:"given,omitempty"`
	// Numbers contains the device numbers that the device's pods may open in this boot (see [devices.noteNumbers]).
	Numbers []string `json:"numbers,omitempty"`
	// OwedBy identifies a kubelet whose call to Allocate may not have ended yet. OwedBy is nil if there is no such call, and points
	// to an empty string if the kubelet is unknown.
	OwedBy *string `json:"owed,omitempty"`
	// Unfinished means that a helper may still be working on the disk, because metalplugd ended during this work, or because the
	// erasure failed. An inspection clears the field when it finds that no helper is working on the disk.
	Unfinished bool `json:"unfinished,omitempty"`
}

// forgetBoot deletes the facts that are valid only during one boot.
func (k *known) forgetBoot() {
	k.Appearance, k.Instance, k.Unfinished = "", 0, false
	k.Initialised, k.Numbers, k.OwedBy, k.Claims = "", nil, nil, k.Claims.Rebooted()
}

// noteReplacedMedium records that the disk may no longer be the one that the last tenant used.
func (l *leases) noteReplacedMedium(e *entry) {
	if e.lease.Residue || e.lease.Order == lease.Erase {
		_ = l.apply(e, lease.Event{Name: lease.Replaced})
	}
}

// noteAppearance checks whether a disk has reappeared since its tenant left data on it. noteAppearance recognises a new
// appearance by a new diskseq or, before Linux 5.15, by a new inode of the disk's sysfs directory. If a disk reappears while
// metalplug is working on it, it may be another disk with the same identity. When the work ends, the helper must prove that it is
// still the same disk. Otherwise, metalplug treats it as another disk.
func (l *leases) noteAppearance(e *entry, s *device.Sighting) {
	appearance, medium := s.Target.Appearance(), s.Target.Medium()
	other := e.Appearance != "" && appearance != e.Appearance || e.Medium != "" && medium != e.Medium ||
		appearance == "" && e.Instance != 0 && s.Instance != e.Instance
	if other {
		e.lastProbe = lastProbe{}
		same := e.Medium != "" && medium == e.Medium
		if !same || !e.isBusy() && (appearance == "" || appearance != e.work.provenDiskseq) {
			l.noteReplacedMedium(e)
		}
	}
	e.Appearance, e.Medium = appearance, medium
}

// noteTwin checks whether another disk reports the same medium as this disk, for example the same serial number. Without this
// check, metalplug would apply the evidence about one disk to the other. After two disks have reported the same medium, only
// their appearances identify them. metalplug does not know which of the two a tenant had, or whether they are two paths to one
// disk.
func (l *leases) noteTwin(e *entry) {
	if e.Medium == "" || l.evidence.HasTwins(e.Medium) {
		return
	}
	other := l.media[e.Medium]
	l.media[e.Medium] = e
	if other == nil || other == e || other.sighting == nil || other.Medium != e.Medium {
		return
	}
	l.Log.Warn("two disks have the same identity", "device", e.device.ID, "detail", "the other is "+other.device.ID+": the evidence of both disks is discarded")
	l.evidence.Split(e.Medium)
	l.noteReplacedMedium(e)
	l.noteReplacedMedium(other)
	l.saveSoon(other)
}

// compareContent records the content of a disk that has no tenant, while no work on the disk is in progress. If the disk still
// has to be cleaned up, its content is recorded only while the disk is cordoned, because an operator may use a cordoned disk.
// Each later inspection compares the content with this record. If the content differs, another node or an operator has written to
// the disk.
func (l *leases) compareContent(e *entry, s *device.Sighting) {
	if s.Fingerprint == "" || e.lease.Held() || (e.lease.Used || e.lease.Failure != "") && l.cordons[e.device.ID] == nil {
		return
	}
	if e.Fingerprint != "" && e.Fingerprint != s.Asked {
		return // the probe began before the fingerprint was known, so it read other blocks of the disk
	}
	e.seenFingerprint = s.Fingerprint
	switch {
	case !e.lease.Residue || e.Fingerprint == s.Fingerprint:
		return
	case e.Fingerprint != "":
		l.noteForeignContent(e, "the disk differs from what the last pod left")
	}
	e.Fingerprint = s.Fingerprint
	l.saveLater()
}

// noteWrites compares the number of sectors written to a disk with the number at the last inspection. The number may increase
// while a container has the disk, or while metalplug is working on it. At any other time, an increase means that another process
// has written to the disk. Such a write cancels an adoption or an order to erase. The content is then no longer treated as a
// tenant's. After an erasure has failed, the content is unknown, and only the number of sectors shows whether another process has
// written to the disk. If the kernel does not count writes, noteWrites therefore assumes such a write. In each boot, the kernel
// counts from 0, so noteWrites also notices writes between the boot and the first inspection.
func (l *leases) noteWrites(e *entry, s *device.Sighting) {
	switch {
	case !s.Target.IsDisk():
		return
	case e.lease.Held() && e.lease.Hold != lease.Due:
		e.Wrote = evidence.Writes{}
		return
	}
	before, now := e.Wrote, l.writes(e, s.Written)
	e.Wrote = now
	v := l.evidence.Get(e.Disk)
	adopted, tenants := v != nil && v.Scrub != "", e.lease.Residue || e.lease.Order == lease.Erase
	if before != now && (adopted || tenants) {
		l.saveLater()
	}
	reason := before.Foreign(now)
	if e.lease.Failure != "" && now.Sectors >= sysfs.Uncounted {
		reason = "the work on the disk has failed, and the kernel does not count writes to the disk (queue/iostats)"
	}
	if reason != "" && (adopted || tenants) {
		l.noteForeignContent(e, reason)
	}
}

// noteForeignContent records that a disk's content does not come from a tenant.
func (l *leases) noteForeignContent(e *entry, reason string) {
	if e.lease.Residue {
		l.Log.Warn("disk content changed", "device", e.device.ID, "reason", "metalplug does not erase the disk, because "+reason)
	}
	_ = l.apply(e, lease.Event{Name: lease.Changed, Reason: reason})
	l.endEvidence(e, reason) // the event does not end an adoption while the host may use the disk
}
