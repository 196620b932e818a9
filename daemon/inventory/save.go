// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"maps"
	"slices"
)

// saveLater saves the state soon, with the changes until then.
func (l *loop) saveLater() {
	if !l.isTimed {
		l.isTimed = true
		l.saveTimer.Reset(savePause)
	}
}

// saveSoon saves the state though no known device has changed.
func (l *loop) saveSoon() {
	l.unsaved = true
	if l.isReady { // before, the devices of the last run may be missing
		l.saveLater()
	}
}

// save passes the state to the writer if it has changed. It has all offered devices, disks that have to be erased, faults,
// evidence and cordons.
func (l *loop) save() {
	l.isTimed = false
	if l.Store == nil || !l.unsaved {
		return
	}
	if l.lost && !l.isReady { // the next start would take the few devices that were seen for the whole state
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
	evidence := make([]evidenceRecord, 0, len(l.evidence)) // the writer reads it next to the loop
	for _, medium := range slices.Sorted(maps.Keys(l.evidence)) {
		v := *l.evidence[medium]
		if e := l.media[medium]; e != nil && e.busy() { // a crash may leave other content than was adopted
			v.Fingerprint = ""
		}
		evidence = append(evidence, evidenceRecord{medium, v})
	}
	c := contents{Version: stateVersion, Machine: l.Machine, Health: l.savedHealth(), Evidence: evidence, Cordons: l.nextCordons}
	head, err := c.head()
	if err != nil {
		l.Log.Error("state not saved", "err", err)
		return
	}
	l.Store.Save(head, lines)
}

// record returns the record of a device. It is not known what content a crash leaves on a disk that is being erased, nor
// whether the disk that appears after the work is the same.
func (l *loop) record(e *entry) record {
	r := record{
		ID: e.device.ID, Class: className(e.device), Resource: e.resource, Model: e.device.Model, SysPath: e.device.SysPath,
		NUMANode: e.device.NUMANode, Present: e.sighting != nil, Away: !e.offered, Bundle: Member{e.of, e.bundle}, Lease: e.lease, Disk: e.medium,
		Fingerprint: e.left.fingerprint, Blank: e.left.blank,
		Appearance: e.appearance, Initialised: e.initialised, Instance: e.instance, Wrote: e.wrote, Given: e.given, Numbers: e.numbers,
	}
	if e.owed {
		r.Owed = &e.kubelet
	}
	if e.busy() {
		r.Fingerprint, r.Blank, r.Appearance, r.Wrote = "", false, e.window.from.appearance, wrote{}
	}
	return r
}
