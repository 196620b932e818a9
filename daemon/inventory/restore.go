// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"maps"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/lease"
)

// restore adds the devices of the last run to the device list. They are Unhealthy until an inspection finds them.
func (l *loop) restore() {
	defer l.restoreRemembered()
	if boot, err := l.Host.Read("/proc/sys/kernel/random/boot_id"); err == nil {
		l.faults.Boot = boot
	}
	l.evidence = evidence.NewBook(l.faults.Boot)
	if l.Store == nil {
		return
	}
	var kept contents
	if err := l.Store.Load(func(text []byte) (err error) { kept, err = decode(text, l.Machine); return err }); err != nil {
		kept = contents{}
		l.lost = true
		l.Log.Error("state lost", "err", fmt.Errorf("%w; the record of cordons and of erased disks is lost: "+
			"all devices found at this start are cordoned, and disks are unproven; uncordon those that were not cordoned before", err))
	}
	maps.Copy(l.cordons, kept.Cordons)
	if kept.Version == 0 { // save a file at the first start, so that a missing file later means a lost state
		defer func() { l.unsaved = true; l.save() }()
	}
	sameBoot := kept.Health.Boot == l.faults.Boot
	if sameBoot {
		l.faults = kept.Health
	}
	for _, medium := range l.evidence.Restore(kept.Disks, sameBoot) {
		l.Log.Warn("adoption ended", "device", medium, "err", "the node went down before the erasure; adopt the disk again")
	}
	for _, r := range kept.Devices {
		// A pod may hold a device of a resource that was removed from the configuration. When that pod has ended, another
		// resource can get the device.
		class, offered := device.ClassNamed(r.Class), (l.rule(r.Resource) != nil || r.Held()) && !r.Away
		if class == nil || !offered && !(r.Used && class.Disks) {
			continue
		}
		e := &entry{
			device: &device.Device{
				ID: r.ID, Class: class, Model: r.Model, SysPath: r.SysPath, NUMANode: r.NUMANode,
			},
			resource: r.Resource,
			offered:  offered,
			awaited:  r.Present && l.AfterBoot,
			lease:    r.Lease,

			membership: membership{bundle: r.Bundle.ID, of: r.Bundle.Resource},
		}
		if e.known = r.known; !sameBoot {
			e.rebooted()
		}
		l.numbered(e)
		if e.Owed != nil {
			l.owing[e] = true
		}
		_ = l.change(e, lease.Event{Name: lease.Restart})
		if !sameBoot {
			_ = l.change(e, lease.Event{Name: lease.Reboot})
			if !r.outlastsBoot() {
				if e.lease.Residue {
					l.Log.Warn("disk left to the operator", "device", r.ID, "reason", "the node went down before the disk was erased; adopt the disk")
				}
				l.replaced(e)
			}
		}
		l.entries[r.ID] = e
		l.changed(e)
	}
}

// outlastsBoot reports whether the content of a disk may still be treated as a tenant's after a boot. The disk must have an
// identity, because another disk may have taken over its name or location. A fingerprint of the content is required,
// because another machine may have used the disk. While a pod may write to a disk, there is no fingerprint. In that case,
// only the same pod may start a container with the disk after a boot ([lease.Interrupted]).
func (r record) outlastsBoot() bool {
	return r.known.Medium != "" && (r.Fingerprint != "" && !r.Held() || r.Used && r.Held() && r.Hold != lease.Due)
}
