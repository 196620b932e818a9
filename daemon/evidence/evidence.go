// SPDX-License-Identifier: Apache-2.0

// Package evidence holds why a disk counts as unused, and what a look at the disk makes of that. It reads nothing itself.
package evidence

import (
	"fmt"
	"time"
)

// Kinds of evidence.
const (
	Blank   = "blank"   // every block was read once
	Erased  = "erased"  // by us, verified
	Adopted = "adopted" // the operator allowed to erase it, and it was erased
)

// Evidence is the reason why a disk counts as unused. The zero value is none. It belongs to the medium, so that it outlasts
// unplugging, another slot and a reboot. A presence is one appearance of the disk in one boot.
type Evidence struct {
	Kind  string `json:"kind,omitempty"`  // or empty while the disk is being read
	Size  int64  `json:"size,omitempty"`  // of the disk in bytes, or 0 while unknown
	Read  int64  `json:"read,omitempty"`  // without a Kind, the number of bytes that were read and are blank
	Found string `json:"found,omitempty"` // without a Kind, the content at Read
	Scrub string `json:"scrub,omitempty"` // how to erase an adopted disk, or empty after that
	// Fingerprint is that of the content which the operator adopted, see [device.Reading], or empty if unknown. Other content
	// is not erased.
	Fingerprint string    `json:"fingerprint,omitempty"`
	Since       time.Time `json:"since"`

	// The presence in Of limits the evidence until a look has confirmed it. Then Of is empty.
	Of string `json:"of,omitempty"`

	// In is the presence in which Written was the [device.Sighting].Written of the disk, when it was last known that no other
	// process had written there. Each presence counts from 0.
	In      string `json:"in,omitempty"`
	Written uint64 `json:"written,omitempty"`
	// Asked is the presence in which no process had the disk open when it was to be offered.
	Asked string `json:"asked,omitempty"`
}

// Proves reports whether the evidence is complete, for a disk in that presence.
func (v *Evidence) Proves(presence string) bool {
	return v != nil && v.Kind != "" && v.Scrub == "" && (v.Of == "" || v.Of == presence)
}

// Percent returns how much of the disk was read.
func (v Evidence) Percent() int {
	if v.Size <= 0 {
		return 0
	}
	return int(float64(v.Read) / float64(v.Size) * 100)
}

// Reading is the reason of a disk that is being read.
func (v Evidence) Reading() string {
	return fmt.Sprintf("being read, %d %%", v.Percent())
}

// OutlastsBoot reports whether the evidence holds after a boot. An adoption does only if the adopted content is known, since
// the disk may have served elsewhere.
func (v Evidence) OutlastsBoot() bool {
	if v.Scrub != "" {
		return v.Fingerprint != ""
	}
	return v.Of == ""
}

// Seen are the facts of a look at a disk.
type Seen struct {
	Presence string
	SameBoot bool // whether the presence in [Evidence].Of is one of this boot
	Size     int64
	Written  uint64
	Held     bool   // whether a tenant has it
	HostUse  string // how the host uses it, or empty
	Data     string // what is on it, or empty
}

// Weigh returns what a look makes of evidence, and why the evidence has ended, or empty. An erasure proves nothing of another
// disk with the same identity that came in its place, nor does the operator's word about it.
func (v Evidence) Weigh(s Seen) (next Evidence, ended string) {
	switch {
	case v.Of == "" || v.Of == s.Presence && v.Scrub != "":
	case v.Of == s.Presence:
		v.Of = ""
	case v.Scrub != "" && !s.SameBoot: // diskseq starts again with each boot, and the helper compares the content
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
	case v.Scrub == "" && v.Found == "": // else the helper compares the content, or a read begins again where it found some
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
