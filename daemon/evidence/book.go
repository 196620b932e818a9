// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"strconv"
	"strings"
)

// Disk identifies a disk that an inspection found. Two inspections that find the same disk produce equal values.
type Disk struct {
	Appearance string `json:"diskseq,omitempty"` // diskseq, which differs for each disk that appears in this boot (see device.Target)
	Medium     string `json:"disk,omitempty"`    // identifies the disk itself in any boot (see device.Target)
	Instance   uint64 `json:"inode,omitempty"`   // inode of the disk's sysfs directory in this boot (see device.Host)
}

// Book contains the evidence about all disks, including absent ones.
type Book struct {
	boot    string
	records map[string]*Evidence // evidence by key
}

// NewBook returns an empty book for the boot with this ID. The ID is empty if it is unknown.
func NewBook(boot string) *Book {
	return &Book{boot: boot, records: make(map[string]*Evidence)}
}

// bootKey is the prefix of keys that are valid only in one boot.
const bootKey = "boot="

// key returns the key of a disk's evidence. If the medium identifies the disk, the key is the medium. Otherwise, the key is the
// disk's appearance in this boot. A disk that cannot be identified has an empty key.
func (b *Book) key(d Disk) string {
	switch {
	case d.Medium != "" && !b.HasTwins(d.Medium):
		return d.Medium
	case d.Appearance != "" && b.boot != "":
		return b.Presence(d)
	}
	return ""
}

// Knows reports whether the book can identify the disk and can therefore contain evidence about it.
func (b *Book) Knows(d Disk) bool { return b.key(d) != "" }

// Get returns the evidence about a disk, or nil.
func (b *Book) Get(d Disk) *Evidence {
	if key := b.key(d); key != "" {
		return b.records[key]
	}
	return nil
}

// Proves reports whether the evidence about a disk is complete and valid.
func (b *Book) Proves(d Disk) bool { return b.Get(d).Proves(b.Presence(d)) }

// Set records evidence about a disk that the book can identify (see [Book.Knows]).
func (b *Book) Set(d Disk, v Evidence) { b.records[b.key(d)] = &v }

// End deletes the evidence about a disk.
func (b *Book) End(d Disk) { delete(b.records, b.key(d)) }

// Presence returns a text that is different each time the same disk appears. Kernels before Linux 5.15 do not count appearances,
// so for these kernels, the text contains the inode of the disk's sysfs directory.
func (b *Book) Presence(d Disk) string {
	if d.Appearance == "" {
		return bootKey + b.boot + " directory=" + strconv.FormatUint(d.Instance, 10)
	}
	return bootKey + b.boot + " diskseq=" + d.Appearance
}

// SameBoot reports whether a presence is known to belong to this boot.
func (b *Book) SameBoot(presence string) bool {
	return b.boot != "" && strings.HasPrefix(presence, bootKey+b.boot+" ")
}

// Split records that two disks claim the same medium. From then on, the book identifies each of these disks only by
// its appearance.
func (b *Book) Split(medium string) { b.records[medium] = &Evidence{Twins: true} }

// HasTwins reports whether two disks have claimed the same medium in this boot.
func (b *Book) HasTwins(medium string) bool {
	return b.records[medium] != nil && b.records[medium].Twins
}

// Restore adds the evidence that the last run of metalplugd saved. Some adoptions end when the node reboots, and Restore returns
// the media of these adoptions.
func (b *Book) Restore(saved map[string]Evidence, sameBoot bool) (ended []string) {
	for key, v := range saved {
		switch {
		case sameBoot, v.OutlastsBoot() && !strings.HasPrefix(key, bootKey):
			b.records[key] = &v
		case v.Scrub != "":
			ended = append(ended, key)
		}
	}
	return ended
}

// Saved returns the evidence for the state file. Saved omits the fingerprint of a disk that metalplug is working on. After a
// crash, this disk's content may differ from the adopted content.
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
