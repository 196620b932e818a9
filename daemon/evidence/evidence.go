// SPDX-License-Identifier: Apache-2.0

// Package evidence has the reasons why a disk counts as unused, and updates them after each inspection of the disk. It
// reads no hardware.
package evidence

import (
	"fmt"
	"time"
)

// Kinds of evidence.
const (
	Blank   = "blank"   // every block was read once
	Erased  = "erased"  // erased by metalplug and verified
	Adopted = "adopted" // the operator allowed the erasure, and the disk was erased
)

// Evidence is the reason why a disk counts as unused. The zero value is no evidence. It belongs to the medium, so it
// outlasts unplugging, another slot and a reboot. A presence is one appearance of the disk during one boot.
type Evidence struct {
	Kind  string `json:"kind,omitempty"`  // or empty while the disk is being read
	Size  int64  `json:"size,omitempty"`  // of the disk in bytes, or 0 while unknown
	Read  int64  `json:"read,omitempty"`  // without a Kind, the number of bytes that were read and are blank
	Found string `json:"found,omitempty"` // without a Kind, the content at Read
	Scrub string `json:"scrub,omitempty"` // method to erase an adopted disk, or empty after the erasure
	// Fingerprint is that of the content that the operator adopted, see [device.Reading], or empty if unknown. Other
	// content is not erased.
	Fingerprint string    `json:"fingerprint,omitempty"`
	Since       time.Time `json:"since"`

	// The presence in Of limits the evidence until an inspection has confirmed it. Then Of is empty.
	Of string `json:"of,omitempty"`

	// In is the presence to which Written belongs. Written is the [device.Sighting].Written at the last time when no
	// other process was known to have written to the disk. The count starts at 0 in each presence.
	In      string `json:"in,omitempty"`
	Written uint64 `json:"written,omitempty"`
	// Asked is the presence in which no process had the disk open when it was about to be offered.
	Asked string `json:"asked,omitempty"`
}

// Proves reports whether the evidence is complete for a disk in the given presence.
func (v *Evidence) Proves(presence string) bool {
	return v != nil && v.Kind != "" && v.Scrub == "" && (v.Of == "" || v.Of == presence)
}

// Percent returns how much of the disk has been read.
func (v Evidence) Percent() int {
	if v.Size <= 0 {
		return 0
	}
	return int(float64(v.Read) / float64(v.Size) * 100)
}

// Reading returns the reason for a disk that is being read.
func (v Evidence) Reading() string {
	return fmt.Sprintf("being read, %d %%", v.Percent())
}

// OutlastsBoot reports whether the evidence is valid after a boot. An adoption is valid only if the adopted content is
// known, because the disk may have been used in another machine.
func (v Evidence) OutlastsBoot() bool {
	if v.Scrub != "" {
		return v.Fingerprint != ""
	}
	return v.Of == ""
}

// Seen has the facts from an inspection of a disk.
type Seen struct {
	Presence string
	SameBoot bool // whether the presence in [Evidence].Of belongs to this boot
	Size     int64
	Written  uint64
	Held     bool   // whether a tenant holds the disk
	HostUse  string // how the host uses it, or empty
	Data     string // data on the disk, or empty
}

// Weigh returns the evidence after an inspection, and why it has ended, or "". The evidence of an erasure or an
// adoption is not valid for another disk that replaced it with the same identity.
func (v Evidence) Weigh(s Seen) (next Evidence, ended string) {
	switch {
	case v.Of == "" || v.Of == s.Presence && v.Scrub != "":
	case v.Of == s.Presence:
		v.Of = ""
	case v.Scrub != "" && !s.SameBoot: // diskseq starts again with each boot, so the helper compares the content
		v.Of = s.Presence
	default:
		return v, "the disk was plugged in again before that was done"
	}
	switch {
	case s.Size > 0 && v.Size == 0:
		v.Size = s.Size
	case s.Size > 0 && v.Size != s.Size:
		return v, fmt.Sprintf("the size was %d bytes and is %d now", v.Size, s.Size)
	}
	switch {
	case v.In != s.Presence:
		v.In, v.Written = s.Presence, s.Written
	case s.Written > v.Written && !s.Held && v.Scrub == "" && v.Found == "":
		return v, "a process wrote to the disk while no pod had it"
	}
	switch {
	case s.Held:
	case s.HostUse != "":
		return v, s.HostUse
	case v.Scrub == "" && v.Found == "": // otherwise the helper compares the content, or the read starts again at the data that it found
		return v, s.Data
	}
	return v, ""
}

// Read are the blank bytes of a disk before the first that is not, its size, and the content that is there.
type Read struct {
	Blank, Size int64
	Content     string // for people, or empty
}

// Surveyed returns the evidence after a part of the read of a disk, which continued the evidence from. It returns false if
// that has ended, or is not the evidence now any more. If data that an earlier part found is gone, another process has
// changed the disk, and the read begins again.
func (v *Evidence) Surveyed(from Evidence, r Read) (next Evidence, ok bool) {
	switch next = from; {
	case v == nil && from.Since.IsZero():
		next.Since = time.Now().UTC()
	case v == nil, v.Since != from.Since, v.Read != from.Read, v.In != from.In, v.Written != from.Written:
		return Evidence{}, false
	}
	if next.Read = r.Blank; from.Found != "" && r.Content == "" {
		next.Read = 0
	}
	next.Size, next.Found = r.Size, r.Content
	if next.Found == "" && next.Size > 0 && next.Read >= next.Size {
		next = Evidence{Kind: Blank, Size: next.Size, Since: time.Now().UTC(), In: next.In, Written: next.Written}
	}
	return next, true
}
