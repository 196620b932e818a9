// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"slices"
)

// saveLater has it saved soon. What changes until then is saved with it.
func (l *loop) saveLater() {
	if !l.saving {
		l.saving = true
		l.saveTimer.Reset(savePause)
	}
}

// saveSoon has it saved, also when no device that is known is any different for it.
func (l *loop) saveSoon() {
	l.unsaved = true
	if l.isReady { // before, who was there in the last run is not known to be back
		l.saveLater()
	}
}

// saveFirst saves the state of a first start.
func (l *loop) saveFirst() {
	l.unsaved = true
	l.save()
}

// save has the state written if it has changed: all offered devices, disks that have to be erased, faults, evidence, cordons.
func (l *loop) save() {
	l.saving = false
	if l.Store == nil || !l.unsaved {
		return
	}
	if l.lost && !l.isReady { // the next start would take the little that was seen for all that was ever kept
		return
	}
	l.unsaved = false
	records := make([]record, 0, len(l.entries))
	for _, e := range l.entries {
		if !e.offered && !e.lease.Used {
			continue
		}
		records = append(records, l.record(e))
	}
	evidence := make([]evidenceRecord, 0, len(l.evidence)) // the store reads it beside the loop
	for _, medium := range slices.Sorted(maps.Keys(l.evidence)) {
		v := *l.evidence[medium]
		if e := l.media[medium]; e != nil && e.busy() { // a crash may leave other content than was adopted
			v.Fingerprint = ""
		}
		evidence = append(evidence, evidenceRecord{medium, v})
	}
	l.Store.save(contents{
		Version: stateVersion, Devices: records, Health: l.savedHealth(), Evidence: evidence, Cordons: l.nextCordons,
	})
}

// record returns what the store keeps of a device. Of a disk that is being erased it is not known what a crash leaves
// there, and after our own work it is not known yet whether the disk that appeared is the same.
func (l *loop) record(e *entry) record {
	r := record{
		ID: e.device.ID, Class: className(e.device), Resource: e.resource, Model: e.device.Model, SysPath: e.device.SysPath,
		NUMANode: e.device.NUMANode, Present: e.sighting != nil, Away: !e.offered, Lease: e.lease, Disk: e.medium,
		Fingerprint: e.left.fingerprint, Blank: e.left.blank,
		Appearance: e.appearance, Initialised: e.initialised, Instance: e.instance,
	}
	if e.busy() {
		r.Fingerprint, r.Blank, r.Appearance = "", false, e.window.from
	}
	return r
}
