// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/lease"
)

// restore takes in the devices of the last run. They are in the offer from the start, Unhealthy until they are seen.
func (l *loop) restore() {
	defer l.restoreRemembered()
	if l.Store == nil {
		l.restoreHealth(health{})
		return
	}
	kept, err := l.Store.load()
	if err != nil {
		l.lost = true
		l.Log.Error("state lost", "err", fmt.Errorf("%w; the record of cordons and of erased disks is lost: "+
			"all devices found at this start are cordoned, and disks are unproven; uncordon those that were not cordoned before", err))
	}
	l.cordons, l.nextCordons = kept.Cordons, kept.Cordons
	if kept.Version == 0 { // from now on a file that is missing is one that was removed
		defer l.saveFirst()
	}
	l.restoreHealth(kept.Health)
	l.restoreEvidence(kept.Evidence)
	sameBoot := kept.Health.Boot == l.boot
	for _, r := range kept.Devices {
		class, offered := device.ClassNamed(r.Class), l.configured(r.Resource) && !r.Away
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
		}
		e.medium, e.left = r.Disk, remains{r.Fingerprint, r.Blank}
		if sameBoot {
			e.appearance, e.initialised, e.instance = r.Appearance, r.Initialised, r.Instance
		}
		if r.Owed != nil && sameBoot {
			e.owed, e.kubelet, l.owing[e] = true, *r.Owed, true
		}
		_ = l.change(e, lease.Event{Name: lease.Restart})
		if !sameBoot {
			_ = l.change(e, lease.Event{Name: lease.Reboot})
			if !r.outlastsBoot() {
				l.replaced(e)
			}
		}
		l.entries[r.ID] = e
		l.changed(e)
	}
}

func (l *loop) configured(resource string) bool {
	return slices.ContainsFunc(l.rules, func(r device.Rule) bool { return r.Resource == resource })
}

// outlastsBoot reports whether what is on a disk may count as left by a tenant after a boot. Another disk may have its name or
// its place, so that it has to say which one it is. And it may have served elsewhere: unless nobody may have it before
// it is erased, it has to be known by what was left on it, which is not read while a pod holds it.
func (r record) outlastsBoot() bool {
	return r.Disk != "" && (r.Used || r.Fingerprint != "" && !r.Held())
}
