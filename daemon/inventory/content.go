// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/lease"
)

// known are the facts about a device that outlast a restart of the daemon.
type known struct {
	evidence.Disk
	left                 // of the last tenant, if no process has written there since
	Wrote       wrote    `json:"wrote,omitzero"`        // to the disk when it was last known who wrote, or zero if that is not known
	Initialised string   `json:"initialised,omitempty"` // the [device.Rule].Init that was done to this appearance of the hardware
	Given       []string `json:"given,omitempty"`       // the nodes that its pods were given. It is replaced and never written
	Numbers     []string `json:"numbers,omitempty"`     // of its node in this boot, by which its pods may open it, see [devices.noteNumber]
}

// left identifies the data that a tenant has left on a disk. With the zero value the data is not known.
type left struct {
	Fingerprint string `json:"fingerprint,omitempty"`
	Blank       bool   `json:"blank,omitempty"` // nothing was found
}

// wrote is how many sectors were written to a disk in one presence, see [evidence.Book.Presence].
type wrote struct {
	In      string `json:"in,omitempty"`
	Sectors uint64 `json:"sectors,omitempty"`
}

// rebooted forgets the facts that the kernel counts from the start in each boot.
func (k *known) rebooted() {
	k.Appearance, k.Instance, k.Wrote, k.Initialised, k.Numbers = "", 0, wrote{}, "", nil
}

// replaced notes that another medium may be in the place of a disk.
func (l *leases) replaced(e *entry) {
	if e.lease.Residue || e.lease.Order == lease.Erase {
		_ = l.apply(e, lease.Event{Name: lease.Replaced})
	}
}

// appears notes which appearance of a disk was seen. What a tenant has left there was on the one before. On a kernel that
// does not count disks, its directory in sysfs shows that it has appeared again. One that
// appears again while we are at work on it may be another with the same identity: it counts as the same only if the helper
// vouches for it, which the end of the work shows.
func (l *leases) appears(e *entry, s *device.Sighting) {
	appearance, medium := s.Target.Appearance(), s.Target.Medium()
	other := e.Appearance != "" && appearance != e.Appearance || e.Medium != "" && medium != e.Medium ||
		appearance == "" && e.Instance != 0 && s.Instance != e.Instance
	if other {
		e.proof = proof{}
		same := e.Medium != "" && medium == e.Medium
		if w := e.window; !same || w == nil || !e.busy() && (appearance == "" || appearance != w.vouched) {
			l.replaced(e)
		}
	}
	e.Appearance, e.Medium = appearance, medium
}

// noteTwin compares the medium of a disk with those of the others. Evidence of one disk would be taken for that of another with
// the same serial number. From then on each of them is known by its appearance alone. It is not known which of them a tenant
// has had, nor whether both are one disk.
func (l *leases) noteTwin(e *entry) {
	if e.Medium == "" || l.evidence.HasTwins(e.Medium) {
		return
	}
	other := l.media[e.Medium]
	l.media[e.Medium] = e
	if other == nil || other == e || other.sighting == nil || other.Medium != e.Medium {
		return
	}
	l.Log.Warn("two disks have one identity", "device", e.device.ID, "detail", "the other is "+other.device.ID+": what is known of either is forgotten")
	l.evidence.Split(e.Medium)
	l.replaced(e)
	l.replaced(other)
	l.unsaved = true
	l.changed(other)
}

// compare notes the content of a disk that a tenant has left and no worker works on. At each look after that it makes sure
// that the content is the same. If it differs, another node or an operator wrote it.
func (l *leases) compare(e *entry, s *device.Sighting) {
	found := left{s.Fingerprint, s.Blank}
	known := s.Fingerprint != "" || s.Blank && l.facts(e).Evident()
	if !known || e.lease.Held() || e.lease.Used || e.lease.Failure != "" || e.busy() || e.outdated() {
		return
	}
	if e.left.Fingerprint != "" && e.left.Fingerprint != s.Asked && e.left.Blank == s.Blank {
		return // the probe began before that was known, and has read other places
	}
	e.seen = found
	switch {
	case !e.lease.Residue || e.left == found:
		return
	case e.left != (left{}):
		l.foreign(e, "it differs from what its last pod has left")
	}
	e.left, l.unsaved = found, true
}

// noteWrites compares what was written to a disk with what the last look saw. While no container of a tenant has the disk,
// and we are not at work on it, another process has written the rest. Then an order and an adoption lapse, and what is on the
// disk is not the tenant's.
func (l *leases) noteWrites(e *entry, s *device.Sighting) {
	switch {
	case !s.Target.IsDisk(), e.busy(), e.outdated():
		return
	case e.lease.Held() && e.lease.Hold != lease.Due:
		e.Wrote = wrote{}
		return
	}
	before, now := e.Wrote, wrote{l.evidence.Presence(e.Disk), s.Written}
	if before == now {
		return
	}
	e.Wrote = now
	v := l.evidence.Get(e.Disk)
	adopted, tenants := v != nil && v.Scrub != "", e.lease.Residue || e.lease.Order == lease.Erase
	l.unsaved = l.unsaved || adopted || tenants
	if before.In != now.In || now.Sectors <= before.Sectors {
		return
	}
	if adopted {
		l.endEvidence(e, "a process wrote to the disk")
	}
	if tenants {
		l.foreign(e, "a process wrote to the disk while no pod had it")
	}
}

// foreign notes that what is on a disk was not left there by a tenant.
func (l *leases) foreign(e *entry, reason string) {
	if e.lease.Residue {
		l.Log.Warn("disk written by others", "device", e.device.ID,
			"err", "what is on it is not what its last pod has left there: it is not erased")
	}
	_ = l.apply(e, lease.Event{Name: lease.Changed, Reason: reason})
}
