// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"maps"
	"slices"
)

// saveLater has it saved soon. What changes until then is saved with it.
func (l *loop) saveLater() {
	if !l.isTimed {
		l.isTimed = true
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

// save has the state written if it has changed: all offered devices, disks that have to be erased, faults, evidence, cordons.
func (l *loop) save() {
	l.isTimed = false
	if l.Store == nil || !l.unsaved {
		return
	}
	if l.lost && !l.isReady { // the next start would take the little that was seen for all that was ever kept
		return
	}
	l.unsaved = false
	lines := make([][]byte, 0, len(l.entries))
	for _, e := range l.entries {
		if !e.offered && !e.lease.Used {
			continue
		}
		if e.line == nil {
			line, err := json.Marshal(l.record(e))
			if err != nil {
				l.Log.Error("state not saved", "device", e.device.ID, "err", err)
				continue
			}
			e.line = line
		}
		lines = append(lines, e.line)
	}
	evidence := make([]evidenceRecord, 0, len(l.evidence)) // the store reads it beside the loop
	for _, medium := range slices.Sorted(maps.Keys(l.evidence)) {
		v := *l.evidence[medium]
		if e := l.media[medium]; e != nil && e.busy() { // a crash may leave other content than was adopted
			v.Fingerprint = ""
		}
		evidence = append(evidence, evidenceRecord{medium, v})
	}
	c := contents{Version: stateVersion, Machine: l.Store.Machine, Health: l.savedHealth(), Evidence: evidence, Cordons: l.nextCordons}
	all, err := c.encode(lines)
	if err != nil {
		l.Log.Error("state not saved", "err", err)
		return
	}
	l.Store.save(all)
}

// record returns what the store keeps of a device. Of a disk that is being erased it is not known what a crash leaves
// there, and after our own work it is not known yet whether the disk that appeared is the same.
func (l *loop) record(e *entry) record {
	r := record{
		ID: e.device.ID, Class: className(e.device), Resource: e.resource, Model: e.device.Model, SysPath: e.device.SysPath,
		NUMANode: e.device.NUMANode, Present: e.sighting != nil, Away: !e.offered, Lease: e.lease, Disk: e.medium,
		Fingerprint: e.left.fingerprint, Blank: e.left.blank,
		Appearance: e.appearance, Initialised: e.initialised, Instance: e.instance, Wrote: e.wrote, Given: e.given,
	}
	if e.owed {
		r.Owed = &e.kubelet
	}
	if e.busy() {
		r.Fingerprint, r.Blank, r.Appearance, r.Wrote = "", false, e.window.from.appearance, wrote{}
	}
	return r
}
