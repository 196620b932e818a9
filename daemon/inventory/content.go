// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/lease"
)

// sameDisk identifies the disk that a look saw. Two looks that saw the same disk have equal values.
type sameDisk struct {
	appearance string // of the disk, as [device.Target.Appearance] returns it
	medium     string // identifies the disk itself, also in another boot, as [device.Target.Medium] returns it
	instance   uint64 // of the hardware, see [device.Host.Instance]
}

// content identifies the disk that was seen, and the data that a tenant has left on it.
type content struct {
	sameDisk
	left  remains // of the last tenant, if no process has written there since
	seen  remains // the same at the last look
	wrote wrote   // what was written to the disk when it was last known who wrote; the zero value: not known
}

// remains identifies the data that a tenant has left on a disk. With the zero value the data is not known.
type remains struct {
	fingerprint string
	blank       bool // nothing was found
}

// wrote is how many sectors were written to a disk in one presence, see [loop.presence].
type wrote struct {
	In      string `json:"in,omitempty"`
	Sectors uint64 `json:"sectors,omitempty"`
}

// replaced notes that another medium may be in the place of a disk.
func (l *loop) replaced(e *entry) {
	if e.lease.Residue || e.lease.Order == lease.Erase {
		_ = l.apply(e, lease.Event{Name: lease.Replaced})
	}
}

// appears notes which appearance of a disk was seen. What a tenant has left there was on the one before. On a kernel that
// does not count disks, its directory in sysfs shows that it has appeared again. One that
// appears again while we are at work on it may be another with the same identity: it counts as the same only if the helper
// vouches for it, which the end of the work shows.
func (l *loop) appears(e *entry, s *device.Sighting) {
	appearance, medium := s.Target.Appearance(), s.Target.Medium()
	other := e.appearance != "" && appearance != e.appearance || e.medium != "" && medium != e.medium ||
		appearance == "" && e.instance != 0 && s.Instance != e.instance
	if other {
		e.proof = proof{}
		same := e.medium != "" && medium == e.medium
		if w := e.window; !same || w == nil || w.busy == 0 && (appearance == "" || appearance != w.vouched) {
			l.replaced(e)
		}
	}
	e.appearance, e.medium = appearance, medium
}

// noteTwin compares the medium of a disk with those of the others. Evidence of one disk would be taken for that of another with
// the same serial number. From then on each of them is known by its appearance alone. It is not known which of them a tenant
// has had, nor whether both are one disk.
func (l *loop) noteTwin(e *entry) {
	if e.medium == "" || l.twins[e.medium] {
		return
	}
	other := l.media[e.medium]
	l.media[e.medium] = e
	if other == nil || other == e || other.sighting == nil || other.medium != e.medium {
		return
	}
	l.Log.Warn("two disks have one identity", "device", e.device.ID, "detail", "the other is "+other.device.ID+": what is known of either is forgotten")
	delete(l.evidence, e.medium)
	l.twins[e.medium] = true
	l.replaced(e)
	l.replaced(other)
	l.unsaved = true
	l.changed(other)
}

// compare notes the content of a disk that a tenant has left and no worker works on. At each look after that it makes sure
// that the content is the same. If it differs, another node or an operator wrote it.
func (l *loop) compare(e *entry, s *device.Sighting) {
	found := remains{s.Fingerprint, s.Blank}
	known := s.Fingerprint != "" || s.Blank && l.needsEvidence(e)
	if !known || e.lease.Held() || e.lease.Used || e.lease.Failure != "" || e.busy() || e.outdated() {
		return
	}
	if e.left.fingerprint != "" && e.left.fingerprint != s.Asked && e.left.blank == s.Blank {
		return // the probe began before that was known, and has read other places
	}
	e.seen = found
	switch {
	case !e.lease.Residue || e.left == found:
		return
	case e.left != (remains{}):
		l.foreign(e, "it differs from what its last pod has left")
	}
	e.left, l.unsaved = found, true
}

// noteWrites compares what was written to a disk with what the last look saw. While no container of a tenant has the disk,
// and we are not at work on it, another process has written the rest. Then an order and an adoption lapse, and what is on the
// disk is not the tenant's.
func (l *loop) noteWrites(e *entry, s *device.Sighting) {
	switch {
	case !s.Target.IsDisk(), e.busy(), e.outdated():
		return
	case e.lease.Held() && e.lease.Hold != lease.Due:
		e.wrote = wrote{}
		return
	}
	before, now := e.wrote, wrote{l.here(e), s.Written}
	if before == now {
		return
	}
	e.wrote = now
	v := l.evidenceOf(e)
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
func (l *loop) foreign(e *entry, reason string) {
	if e.lease.Residue {
		l.Log.Warn("disk written by others", "device", e.device.ID,
			"err", "what is on it is not what its last pod has left there: it is not erased")
	}
	_ = l.apply(e, lease.Event{Name: lease.Changed, Reason: reason})
}

// spares is [Facts.spared] of an entry.
func (l *loop) spares(e *entry) bool {
	return (&Facts{Offered: e.offered, Lease: e.lease, Rule: l.rule(e.resource)}).spared()
}
