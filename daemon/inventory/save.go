// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/kubelet"
)

// saveLater saves the state after a short pause. The saved state includes changes that are made during the pause.
func (d *devices) saveLater() {
	if !d.unsaved {
		d.unsaved = true
		d.later(saveDelay, (*loop).save)
	}
}

// save passes the state to the writer if it has changed. The state contains all offered devices, disks that must be erased,
// faults, evidence and cordons.
func (l *loop) save() {
	if l.Store == nil || !l.unsaved {
		return
	}
	l.unsaved = false
	if l.lost && !l.isReady { // otherwise the next start would mistake the devices that were found so far for the whole state
		return
	}
	devices := make([]record, 0, len(l.entries))
	for _, e := range l.entries {
		if e.offered || e.lease.Used {
			devices = append(devices, l.record(e))
		}
	}
	busy := func(medium string) bool { e := l.media[medium]; return e != nil && e.busy() }
	c := contents{
		Version: stateVersion, Machine: l.Machine, Health: l.faults.Clone(), Disks: l.evidence.Saved(busy), Cordons: maps.Clone(l.cordons), Devices: devices,
	}
	l.Store.Save(func() ([]byte, error) {
		slices.SortFunc(devices, func(a, b record) int { return strings.Compare(a.ID, b.ID) })
		return json.Marshal(c)
	})
}

// record returns the record of a device. While metalplug works on a disk, the record must already describe the state after a
// crash. A crash leaves the disk with unknown content, and a disk that appears later may be another disk.
func (l *loop) record(e *entry) record {
	r := record{
		ID: e.device.ID, Class: e.device.ClassName(), Resource: e.resource, Model: e.device.Model, SysPath: e.device.SysPath,
		NUMANode: e.device.NUMANode, Present: e.sighting != nil, Away: !e.offered, Bundle: kubelet.Member{Resource: e.of, ID: e.bundle}, Lease: e.lease, known: e.known,
	}
	if e.busy() {
		r.left, r.Appearance, r.Wrote = left{}, e.work.from.Appearance, wrote{}
	}
	return r
}
