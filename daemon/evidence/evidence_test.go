// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"slices"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// TestWeigh compares evidence of a disk of 100 bytes with an inspection of it.
func TestWeigh(t *testing.T) {
	const here, there = "boot=1 diskseq=2", "boot=1 diskseq=1"
	blank := evidence.Evidence{Kind: evidence.Blank, Size: 100, Wrote: evidence.Writes{In: here, Sectors: 5}}
	erased := evidence.Evidence{Kind: evidence.Erased, Size: 100, Of: here}
	adopted := evidence.Evidence{Scrub: "zero", Size: 100, Of: there}
	for _, test := range []struct {
		name   string
		v      evidence.Evidence
		change func(*evidence.Seen)
		ended  string
		proves bool
	}{
		{"as before", blank, func(*evidence.Seen) {}, "", true},
		{"plugged in again, which counts writes from 0", blank, func(s *evidence.Seen) { s.Wrote.In, s.Wrote.Sectors = there, 0 }, "", true},
		{"plugged in again, without a count", blank, func(s *evidence.Seen) { s.Wrote.In, s.Wrote.Sectors = there, sysfs.Uncounted }, "", true},
		{"plugged in again and written before the inspection", blank, func(s *evidence.Seen) { s.Wrote.In, s.Wrote.Sectors = there, 5 }, "a process wrote to the disk while no pod had it", false},
		{"another size", blank, func(s *evidence.Seen) { s.Size = 200 }, "the size was 100 bytes and is 200 now", false},
		{"written", blank, func(s *evidence.Seen) { s.Wrote.Sectors = 6 }, "a process wrote to the disk while no pod had it", false},
		{"a multipath disk has lost a path", blank, func(s *evidence.Seen) { s.Wrote.Sectors = 4 }, "the kernel counts fewer writes to the disk than before", false},
		{"written by its pod", blank, func(s *evidence.Seen) { s.Wrote.Sectors, s.Held = 6, true }, "", true},
		{"mounted", blank, func(s *evidence.Seen) { s.HostUse = "it is mounted" }, "it is mounted", false},
		{"with data", blank, func(s *evidence.Seen) { s.Data = "ext4" }, "ext4", false},
		{"erased", erased, func(*evidence.Seen) {}, "", true},
		{"erased, and another is in its place", erased, func(s *evidence.Seen) { s.Wrote.In = there }, "the disk was plugged in again during the work on it, or before its erasure was confirmed", false},
		{"adopted, and another is in its place", adopted, func(s *evidence.Seen) { s.SameBoot = true }, "the disk was plugged in again during the work on it, or before its erasure was confirmed", false},
		{"adopted in an earlier boot", adopted, func(s *evidence.Seen) { s.Data = "ext4" }, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := evidence.Seen{Wrote: evidence.Writes{In: here, Sectors: 5}, Size: 100}
			test.change(&s)
			next, ended := test.v.Weigh(s)
			if ended != test.ended || ended == "" && next.Proves(s.Wrote.In) != test.proves {
				t.Errorf("ended: %q, next: %+v", ended, next)
			}
		})
	}
}

// TestSurveyed reads a disk of 100 bytes in parts.
func TestSurveyed(t *testing.T) {
	var first *evidence.Evidence
	half, ok := first.Surveyed(evidence.Evidence{}, evidence.Read{Blank: 50, Size: 100})
	if !ok || half.Kind != "" || half.Percent() != 50 || half.Reading() != "being read, 50 %" {
		t.Fatalf("half of it: %+v", half)
	}
	if whole, ok := half.Surveyed(half, evidence.Read{Blank: 100, Size: 100}); !ok || whole.Kind != evidence.Blank {
		t.Errorf("all of it: %+v", whole)
	}
	found, ok := half.Surveyed(half, evidence.Read{Blank: 60, Size: 100, Content: "ext4"})
	if !ok || found.Found != "ext4" || found.Read != 60 {
		t.Errorf("with data: %+v", found)
	}
	if again, ok := found.Surveyed(found, evidence.Read{Blank: 100, Size: 100}); !ok || again.Kind != "" || again.Read != 0 {
		t.Errorf("the data has gone, and the read does not begin again: %+v", again)
	}
	other := half
	other.Since = half.Since.Add(time.Second)
	if _, ok := other.Surveyed(half, evidence.Read{Blank: 100, Size: 100}); ok {
		t.Error("a read of other evidence counts")
	}
}

// TestBook checks the evidence of disks after an unplug, a twin and a boot.
func TestBook(t *testing.T) {
	b := evidence.NewBook("1")
	disk := evidence.Disk{Medium: "wwid", Appearance: "1"}
	moved := evidence.Disk{Medium: "wwid", Appearance: "2"}
	b.Set(disk, evidence.Evidence{Kind: evidence.Blank})
	b.Set(evidence.Disk{Appearance: "3"}, evidence.Evidence{Kind: evidence.Erased})
	if b.Get(moved) == nil || b.Get(evidence.Disk{Appearance: "4"}) != nil || b.Knows(evidence.Disk{Instance: 7}) {
		t.Error("a disk is not known by its medium, or another is taken for it")
	}
	adopted := map[string]evidence.Evidence{"a": {Scrub: "zero"}, "b": {Scrub: "zero", Fingerprint: "f:1"}, "c": {Scrub: "zero", Fingerprint: "f:0"}}
	next := evidence.NewBook("2")
	saved := b.Saved(func(string) bool { return false })
	if len(next.Restore(saved, false)) != 0 || next.Get(disk) == nil || next.Get(evidence.Disk{Appearance: "3"}) != nil {
		t.Error("evidence of a medium does not outlast the boot, or that of an appearance does")
	}
	if ended := slices.Sorted(slices.Values(next.Restore(adopted, false))); !slices.Equal(ended, []string{"a", "c"}) {
		t.Errorf("ended with the boot: %v", ended)
	}
	if unknown := evidence.NewBook(""); unknown.SameBoot(unknown.Presence(disk)) {
		t.Error("two boots without an ID are taken for the same boot")
	}
	b.Split("wwid")
	if b.Get(disk) != nil || b.Get(moved) != nil || !b.HasTwins("wwid") {
		t.Error("evidence of one disk counts for its twin")
	}
}
