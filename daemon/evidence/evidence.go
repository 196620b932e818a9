// SPDX-License-Identifier: Apache-2.0

// Package evidence records why a disk is considered unused, and updates the record after each inspection of the disk. The package
// does not access hardware.
package evidence

import (
	"fmt"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Kinds of evidence.
const (
	Blank   = "blank"   // every block was read once
	Erased  = "erased"  // metalplug erased the disk and verified the erasure
	Adopted = "adopted" // the operator allowed the erasure, and the disk was erased
)

// Evidence is the reason why a disk is considered unused. The zero value means that there is no evidence. Evidence belongs to the
// medium. Evidence stays valid after a reboot, and also when the disk is unplugged or moved to another slot. A presence is one
// appearance of the disk during one boot.
type Evidence struct {
	Kind  string `json:"kind,omitempty"`  // empty while the disk is being read
	Size  int64  `json:"size,omitempty"`  // size of the disk in bytes, or 0 while unknown
	Read  int64  `json:"read,omitempty"`  // if Kind is empty, the number of bytes that were read and found blank
	Found string `json:"found,omitempty"` // if Kind is empty, a description of the data found at offset Read
	Scrub string `json:"scrub,omitempty"` // method to erase an adopted disk; empty after the erasure
	// Fingerprint identifies the content that the operator adopted (see [device.Report]). The text is empty if the content is
	// unknown. metalplug does not erase other content.
	Fingerprint string    `json:"fingerprint,omitempty"`
	Since       time.Time `json:"since"`

	// The evidence is valid only in the presence Of. If Of is empty, the evidence is valid in any presence. An inspection that
	// confirms the evidence clears this field.
	Of string `json:"of,omitempty"`

	// Wrote is the latest number of writes that does not include any writes by an unknown process.
	Wrote Writes `json:"wrote,omitzero"`
	// Asked is the presence in which metalplug last checked that no process had the disk open. metalplug makes this check just
	// before it offers the disk.
	Asked string `json:"asked,omitempty"`
	Twins bool   `json:"twins,omitempty"` // two disks have the same medium, so this record applies to neither of them (see [Book.Split])
}

// Proves reports whether the evidence is complete for a disk in the given presence.
func (v *Evidence) Proves(presence string) bool {
	return v != nil && v.Kind != "" && v.Scrub == "" && (v.Of == "" || v.Of == presence)
}

// Percent returns how much of the disk has been read, from 0 to 100.
func (v Evidence) Percent() int {
	if v.Size <= 0 {
		return 0
	}
	return int(float64(v.Read) / float64(v.Size) * 100)
}

// Reading returns the reason why a disk is not offered while it is being read.
func (v Evidence) Reading() string {
	return fmt.Sprintf("being read, %d %%", v.Percent())
}

// OutlastsBoot reports whether the evidence is valid after a reboot. During the reboot, another machine may change an adopted
// disk. Only a fingerprint of data shows such a change, so an adoption without one is no longer valid.
func (v Evidence) OutlastsBoot() bool {
	if v.Scrub != "" {
		_, hash, _ := strings.Cut(v.Fingerprint, ":")
		return strings.Trim(hash, "0") != "" // the hash of a blank disk is zero
	}
	return v.Of == "" && !v.Twins
}

// Seen contains the facts that a disk inspection has found.
type Seen struct {
	Wrote    Writes // with the disk's presence
	SameBoot bool   // whether the presence in [Evidence].Of belongs to this boot
	Size     int64
	Held     bool   // whether a tenant holds the disk
	HostUse  string // how the host uses the disk, or empty
	Data     string // data on the disk, or empty
}

// Weigh returns the evidence as it is after an inspection. If the evidence is no longer valid, the result "ended" contains the
// reason. Evidence of an erasure or an adoption ends if the disk may have been replaced by another disk with the same identity.
func (v Evidence) Weigh(s Seen) (next Evidence, ended string) {
	switch {
	case v.Of == "" || v.Of == s.Wrote.In && v.Scrub != "":
	case v.Of == s.Wrote.In:
		v.Of = ""
	case v.Scrub != "" && !s.SameBoot: // the kernel restarts diskseq at 1 in each boot, so the helper compares the content
		v.Of = s.Wrote.In
	default:
		return v, "the disk was plugged in again during the work on it, or before its erasure was confirmed"
	}
	switch {
	case s.Size > 0 && v.Size == 0:
		v.Size = s.Size
	case s.Size > 0 && v.Size != s.Size:
		return v, fmt.Sprintf("the size was %d bytes and is %d now", v.Size, s.Size)
	}
	switch reason := v.Wrote.Foreign(s.Wrote); {
	case reason == "":
		v.Wrote = s.Wrote
	case s.Held, v.Found != "", v.Scrub != "" && v.Wrote.In == s.Wrote.In:
	default:
		return v, reason
	}
	switch {
	case s.Held:
	case s.HostUse != "":
		return v, s.HostUse
	// For an adopted disk, the helper compares the content with the fingerprint. After a read has found data, metalplug later
	// continues reading at the offset of this data.
	case v.Scrub == "" && v.Found == "":
		return v, s.Data
	}
	return v, ""
}

// Writes is the number of sectors that have been written to a disk since the disk appeared (see [Book.Presence]).
type Writes struct {
	In      string `json:"in,omitempty"`
	Sectors uint64 `json:"sectors,omitempty"`
}

// Foreign compares two counts between which neither a container nor metalplug wrote to the disk. If another process wrote to the
// disk, Foreign returns the reason to report, and otherwise "". When a disk appears, the kernel counts from 0.
func (w Writes) Foreign(now Writes) (reason string) {
	switch reappeared := w.In != now.In; {
	case reappeared && (w.In == "" || now.Sectors%sysfs.Uncounted == 0): // the kernel has counted no write
		return ""
	case reappeared, now.Sectors > w.Sectors:
		return "a process wrote to the disk while no pod had it"
	case now.Sectors < w.Sectors: // a multipath disk has lost a path, and a process may have written to the disk before
		return "the kernel counts fewer writes to the disk than before"
	}
	return ""
}

// Read is the result of reading part of a disk.
type Read struct {
	Blank   int64  // number of blank bytes before the first data
	Size    int64  // size of the disk in bytes
	Content string // a description of the data, or empty
}

// Surveyed returns the evidence as it is after metalplug has read another part of the disk. The parameter "from" is the evidence
// from the time when this read started. The result ok is false if the evidence has changed since this read started. If data from
// an earlier read is gone, another process has changed the disk. metalplug then reads the disk again from offset 0.
func (v *Evidence) Surveyed(from Evidence, r Read) (next Evidence, ok bool) {
	switch next = from; {
	case v == nil && from.Since.IsZero():
		next.Since = time.Now().UTC()
	case v == nil, v.Since != from.Since, v.Read != from.Read, v.Wrote != from.Wrote:
		return Evidence{}, false
	}
	if next.Read = r.Blank; from.Found != "" && r.Content == "" {
		next.Read = 0
	}
	next.Size, next.Found = r.Size, r.Content
	if next.Found == "" && next.Size > 0 && next.Read >= next.Size {
		next = Evidence{Kind: Blank, Size: next.Size, Since: time.Now().UTC(), Wrote: next.Wrote}
	}
	return next, true
}
