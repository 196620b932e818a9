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
		if !e.offered && !e.dirty {
			continue
		}
		records = append(records, record{
			ID: e.device.ID, Class: className(e.device), Resource: e.resource, Model: e.device.Model,
			SysPath: e.device.SysPath, NUMANode: e.device.NUMANode, Present: e.sighting != nil, Held: e.held,
			Away: !e.offered, Due: e.due, Dirty: e.dirty, Leftover: e.leftover, Failed: e.work().failed, ByHand: e.work().byHand, Pods: e.pods,
			Appearance: e.appearance, Medium: e.medium, Given: e.given, Fingerprint: e.kept().fingerprint, Blank: e.kept().blank,
			Initialised: e.initialised, Instance: e.instance,
		})
	}
	evidence := make([]evidenceRecord, 0, len(l.evidence)) // the store reads it beside the loop
	for _, medium := range slices.Sorted(maps.Keys(l.evidence)) {
		v := *l.evidence[medium]
		if e := l.media[medium]; e != nil && e.work().under > 0 { // a crash may leave other content than was adopted
			v.Fingerprint = ""
		}
		evidence = append(evidence, evidenceRecord{medium, v})
	}
	l.Store.save(contents{
		Version: stateVersion, Devices: records, Health: l.savedHealth(), Evidence: evidence, Cordons: l.nextCordons,
	})
}
