// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"strconv"
	"strings"
)

// Disk identifies a disk that a look saw. Two looks that saw the same disk have equal values.
type Disk struct {
	Appearance string `json:"diskseq,omitempty"` // of the disk in this boot, see device.Target
	Medium     string `json:"disk,omitempty"`    // identifies the disk itself, also in another boot, see device.Target
	Instance   uint64 `json:"inode,omitempty"`   // of the hardware in this boot, see device.Host
}

// Book has the evidence of all disks, also of absent ones.
type Book struct {
	boot    string
	records map[string]*Evidence // by key
	twins   map[string]bool      // media that two disks have claimed at once since the start
}

// NewBook returns an empty book for a boot, by its ID, or empty if that is unknown.
func NewBook(boot string) *Book {
	return &Book{boot: boot, records: make(map[string]*Evidence), twins: make(map[string]bool)}
}

// bootKey begins what the kernel counts from the start in each boot.
const bootKey = "boot="

// key returns the key of a disk's evidence, which is its medium, or without one its appearance in this boot. It is empty if
// another disk could not be told from it.
func (b *Book) key(d Disk) string {
	switch {
	case d.Medium != "" && !b.twins[d.Medium]:
		return d.Medium
	case d.Appearance != "" && b.boot != "":
		return b.Presence(d)
	}
	return ""
}

// Knows reports whether the book can have evidence of a disk, which no other disk is taken for.
func (b *Book) Knows(d Disk) bool { return b.key(d) != "" }

// Get returns the evidence of a disk, or nil.
func (b *Book) Get(d Disk) *Evidence {
	if key := b.key(d); key != "" {
		return b.records[key]
	}
	return nil
}

// Set records evidence of a disk that the book can know.
func (b *Book) Set(d Disk, v Evidence) { b.records[b.key(d)] = &v }

// End forgets the evidence of a disk.
func (b *Book) End(d Disk) { delete(b.records, b.key(d)) }

// Presence returns what tells a disk in one of its appearances from all other disks with its medium. Where the kernel does
// not count appearances (before Linux 5.15), it is the directory of the disk in sysfs.
func (b *Book) Presence(d Disk) string {
	if d.Appearance == "" {
		return bootKey + b.boot + " directory=" + strconv.FormatUint(d.Instance, 10)
	}
	return bootKey + b.boot + " diskseq=" + d.Appearance
}

// SameBoot reports whether a presence is one of this boot.
func (b *Book) SameBoot(presence string) bool { return strings.HasPrefix(presence, bootKey+b.boot+" ") }

// Split notes that two disks claim one medium. From then on each of them is known by its appearance alone.
func (b *Book) Split(medium string) {
	delete(b.records, medium)
	b.twins[medium] = true
}

// HasTwins reports whether two disks have claimed a medium.
func (b *Book) HasTwins(medium string) bool { return b.twins[medium] }

// Restore takes in the evidence of the last run. It returns the media whose adoption has ended with the boot.
func (b *Book) Restore(kept map[string]Evidence, sameBoot bool) (ended []string) {
	for key, v := range kept {
		switch {
		case sameBoot, v.OutlastsBoot() && !strings.HasPrefix(key, bootKey):
			b.records[key] = &v
		case v.Scrub != "":
			ended = append(ended, key)
		}
	}
	return ended
}

// Saved returns the evidence for the state file. A crash may leave other content than was adopted on a disk with work.
func (b *Book) Saved(busy func(medium string) bool) map[string]Evidence {
	saved := make(map[string]Evidence, len(b.records))
	for key, v := range b.records {
		record := *v
		if busy(key) {
			record.Fingerprint = ""
		}
		saved[key] = record
	}
	return saved
}
