// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/fault"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/lease"
)

// stateVersion is the version of the state file format.
const stateVersion = 2

// record is the entry of one device in the state file.
type record struct {
	ID       string         `json:"id"`
	Class    string         `json:"class"`
	Resource string         `json:"resource"`
	Model    string         `json:"model,omitempty"`
	SysPath  string         `json:"sysfsPath"`
	NUMANode int            `json:"numaNode"`
	Present  bool           `json:"present"`
	Away     bool           `json:"away,omitempty"`  // the device is not in the device list until it is erased
	Bundle   kubelet.Member `json:"bundle,omitzero"` // the bundle of the device

	lease.Lease
	known
}

type savedState struct {
	Version int          `json:"version"`
	Machine string       `json:"machine"` // see [Options]
	Health  fault.Record `json:"health"`
	// Disks contains the evidence about disks by medium, including absent disks. A disk without evidence must be read completely
	// before it is offered.
	Disks map[string]evidence.Evidence `json:"disks,omitempty"`
	// Cordons contains the cordons by device ID. A cordon withholds a device from new pods.
	Cordons map[string]*api.Cordon `json:"cordons,omitempty"`
	// PodData contains the IDs of disks on which a pod may have left data since the disk was last erased or read completely. Pods
	// that got the disk with allow_in_use do not count.
	PodData map[string]bool `json:"podData,omitempty"`
	Devices []record        `json:"devices"`
}

// decode parses a state file. The file's version must be [stateVersion]. Unless the parameter machine is empty, the file must
// also belong to the node with this ID. No cordon may be empty.
func decode(text []byte, machine string) (c savedState, err error) {
	err = json.Unmarshal(text, &c)
	switch {
	case err == nil && c.Version != stateVersion:
		err = fmt.Errorf("version is %d, not %d", c.Version, stateVersion)
	case err == nil && machine != "" && c.Machine != machine:
		err = errors.New("the file was written on another machine")
	case err == nil && slices.Contains(slices.Collect(maps.Values(c.Cordons)), nil):
		err = errors.New("a cordon is empty")
	}
	for _, r := range c.Devices {
		if invalid := r.Valid(); err == nil && invalid != nil {
			err = fmt.Errorf("%s: %w", r.ID, invalid)
		}
	}
	return c, err
}

// restore adds the devices from the last run to the device list. These devices are Unhealthy until an inspection finds them.
func (l *loop) restore() {
	defer l.restoreCheckpoint()
	if boot, err := l.Host.Read("/proc/sys/kernel/random/boot_id"); err == nil {
		l.faults.Boot = boot
	}
	l.evidence = evidence.NewBook(l.faults.Boot)
	var saved savedState
	if err := l.Store.Load(func(text []byte) (err error) { saved, err = decode(text, l.Machine); return err }); err != nil {
		saved = savedState{}
		l.lost = true
		l.Log.Error("state lost", "err", fmt.Errorf("%w; the record of cordons and of erased disks is lost: "+
			"all devices found at this start are cordoned, and disks are unproven; uncordon those that were not cordoned before", err))
	}
	maps.Copy(l.cordons, saved.Cordons)
	maps.Copy(l.podData, saved.PodData)
	if saved.Version == 0 { // save a file at the first start, so that a missing file later shows that the state was lost
		defer func() { l.unsaved = true; l.save() }()
	}
	sameBoot := l.faults.Boot != "" && saved.Health.Boot == l.faults.Boot
	l.afterBoot = l.faults.Boot != "" && !sameBoot
	if sameBoot {
		l.faults = saved.Health
	}
	for _, medium := range l.evidence.Restore(saved.Disks, sameBoot) {
		l.Log.Warn("adoption ended", "device", medium, "reason", "the node went down before the erasure; adopt the disk again")
	}
	for _, r := range saved.Devices {
		// A pod may hold a device of a resource that was removed from the configuration. When that pod has ended, another
		// resource can offer the device.
		class, offered := device.ClassNamed(r.Class), (l.rule(r.Resource) != nil || r.Held()) && !r.Away
		if class == nil || !offered && !(class.Disks && (r.Used || r.Unfinished)) {
			continue
		}
		if r.Working() { // metalplugd ended during this work
			r.Lease, _, _ = r.Apply(lease.Event{Name: lease.Refused})
		}
		e := &entry{
			device:   &device.Device{ID: r.ID, Class: class, Model: r.Model, SysPath: r.SysPath, NUMANode: r.NUMANode},
			resource: r.Resource, offered: offered, awaited: r.Present, lease: r.Lease,

			membership: membership{bundle: r.Bundle.ID, bundleResource: r.Bundle.Resource},
		}
		if e.known = r.known; !sameBoot {
			e.forgetBoot()
		}
		l.addNumbers(e)
		if !sameBoot {
			_ = l.applySilently(e, lease.Event{Name: lease.Reboot})
			if !l.outlastsBoot(r) {
				if e.lease.Residue {
					l.Log.Warn("disk left to the operator", "device", r.ID, "reason", "the node went down before the disk was erased; adopt the disk")
				}
				l.noteReplacedMedium(e)
			}
		}
		l.entries[r.ID] = e
		l.queueVerdict(e)
	}
}

// outlastsBoot reports whether a disk's content may still be treated as a tenant's after a boot. The disk must have an identity,
// because another disk may have taken over its name or location. A fingerprint of data is required, because it shows whether
// another machine has written to the disk. The fingerprint of a blank disk does not show this. If a pod could write to the disk
// until the boot, there is no fingerprint. In that case, only the same pod may start a container with the disk after the boot
// ([lease.Interrupted]). If metalplugd ended before it had saved a call to Allocate, only the kubelet's checkpoint shows the pod.
func (l *loop) outlastsBoot(r record) bool {
	listed := l.CheckpointDevices[r.Resource][r.ID].As != nil || l.CheckpointDevices[r.Bundle.Resource][r.Bundle.ID].As != nil
	return r.known.Medium != "" && (r.Fingerprint != "" && !device.LooksBlank(r.Fingerprint) && !r.Held() && !listed || r.Used && r.Held() && r.Hold != lease.Due)
}

// saveLater saves the state after a short pause. The saved state includes changes made during the pause.
func (d *devices) saveLater() {
	if !d.unsaved {
		d.unsaved = true
		d.postLater(saveDelay, (*loop).save)
	}
}

// save passes the state to the store, which writes it. If nothing has changed since the last save, save does nothing. The state
// contains all offered devices, devices that metalplug is working on, disks that must be erased, faults, evidence and cordons.
func (l *loop) save() {
	if !l.unsaved {
		return
	}
	l.unsaved = false
	if l.lost && !l.isReady { // otherwise the saved state would contain only the devices that were found so far
		return
	}
	devices := make([]record, 0, len(l.entries))
	for _, e := range l.entries {
		if e.offered || e.lease.Used || e.mayChangeContent() || e.Unfinished {
			devices = append(devices, l.record(e))
		}
	}
	busy := func(medium string) bool { e := l.media[medium]; return e != nil && e.mayChangeContent() }
	c := savedState{
		Version: stateVersion, Machine: l.Machine, Health: l.faults.Clone(), Disks: l.evidence.Saved(busy), Cordons: maps.Clone(l.cordons), PodData: maps.Clone(l.podData), Devices: devices,
	}
	l.Store.Save(func() ([]byte, error) {
		slices.SortFunc(devices, func(a, b record) int { return strings.Compare(a.ID, b.ID) })
		return json.Marshal(c)
	})
}

// record returns the record of a device. record omits an order to erase a cordoned disk (see [Inventory.changeCordon]). While
// metalplug is working on a disk, the record describes the state that a crash would leave. After a crash, a disk that has
// reappeared may be a different one, and the content may be unknown.
func (l *loop) record(e *entry) record {
	r := record{
		ID: e.device.ID, Class: e.device.ClassName(), Resource: e.resource, Model: e.device.Model, SysPath: e.device.SysPath,
		NUMANode: e.device.NUMANode, Present: e.sighting != nil, Away: !e.offered, Bundle: kubelet.Member{Resource: e.bundleResource, ID: e.bundle}, Lease: e.lease, known: e.known,
	}
	if e.lease.Order == lease.Erase && l.cordons[r.ID] != nil {
		r.Residue, r.Order = false, lease.NoOrder
	}
	if e.isBusy() {
		r.Appearance = e.work.diskBefore.Appearance
	}
	if e.mayChangeContent() {
		r.Fingerprint, r.Wrote, r.Unfinished = "", evidence.Writes{}, e.isDisk()
	}
	return r
}
