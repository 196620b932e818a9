// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/fault"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/udev"
)

// loop is the state owned by the goroutine that runs [Inventory.Run]. loop embeds several types. Each type's methods can access
// only its own state and that of the types that it embeds. None of these methods reads hardware or waits.
type loop struct {
	*leases
	identities
	publishing
	lost     bool // the last run's state is lost, so an operator may have cordoned any device found at the start
	isReady  bool
	deadline time.Time // deadline for the first snapshot; extended when another device is found
}

// devices contains the devices that have an identity and tracks their changes.
type devices struct {
	*Inventory
	began        time.Time // start of the daemon
	rules        []device.Rule
	entries      map[string]*entry // keys are device IDs
	faults       fault.Record
	cordons      map[string]*api.Cordon // keys are device IDs; a cordon is never modified
	cordonCount  map[string]uint        // how often each device was cordoned or uncordoned since the start
	podData      map[string]bool        // see [savedState]
	granted      map[string][]*entry    // by device number, the devices whose pods may open a node with this number
	dirty        map[*entry]bool        // devices that changed since the last publication
	notesStale   map[*entry]bool        // devices that changed since the last inspection began
	reservations []*reservation         // the workers' reservations, oldest first
	resend       map[string]bool        // resources whose list must be sent again even though it has not changed
	stale        bool                   // a device that is not offered changed since the last publication
	unsaved      bool                   // something has changed since the last save, and a timer will save it
	// afterBoot means that metalplugd has started for the first time in this boot. The first snapshot then waits for devices from
	// the last run that the kernel has not found yet.
	afterBoot bool
}

func newLoop(i *Inventory) *loop {
	all := &devices{
		Inventory: i, began: time.Now(), rules: i.Rules, entries: make(map[string]*entry), cordons: make(map[string]*api.Cordon), cordonCount: make(map[string]uint), podData: make(map[string]bool), granted: make(map[string][]*entry),
		stale: true, // the first snapshot is published even if there is no device
		dirty: make(map[*entry]bool), notesStale: make(map[*entry]bool), resend: make(map[string]bool),
	}
	leases := &leases{&disks{devices: all, media: make(map[string]*entry), notes: make(map[string]device.Note)}}
	l := &loop{
		leases:     leases,
		identities: identities{leases, make(map[*inspect.Subject]found)},
		publishing: publishing{leases: leases, bundles: make(map[string]*Status)},
		deadline:   all.began.Add(i.Settle),
	}
	l.inspector.Seen, l.inspector.Stuck, l.inspector.Host = l.applyInspection, l.markStuck, l.hostForInspection
	return l
}

// handleEvent handles one event from the source.
func (l *loop) handleEvent(e udev.Event) {
	if l.cause.IsZero() {
		l.cause = e.Received
	}
	l.Log.Debug("uevent", "action", e.Action, "syspath", e.Device.SysPath)
	if mark, ok := device.Notice(e); ok && l.faults.Take(mark) {
		l.judgeIn(mark.SysPath)
	}
	l.inspector.Event(e)
}

// settle waits until the first snapshot can be published, which requires that all devices are enumerated. Until the deadline,
// settle also waits for inspections and for the devices from the last run. settle need not wait for udevd, which processes the
// boot events before metalplugd starts (metalplug-mounts.service).
func (l *loop) settle() {
	now, missing := time.Now(), l.incompleteReason()
	if !l.inspector.Enumerated() || missing != "" && now.Before(l.deadline) && now.Sub(l.began) < maxSettleRounds*l.Settle {
		l.postLater(settlePoll, (*loop).settle)
		return
	}
	l.isReady = true
	if l.lost {
		l.cordonKnown()
	}
	if missing != "" {
		l.Log.Warn("device list incomplete at start", "reason", missing)
	}
}

// incompleteReason returns why the first snapshot would be incomplete if it were published now. The result is empty if the
// snapshot would be complete.
func (l *loop) incompleteReason() string {
	if open := l.inspector.Open(); open > 0 {
		return fmt.Sprintf("devices whose inspection is not finished: %d", open)
	}
	for _, e := range l.entries {
		if l.afterBoot && e.awaited && e.sighting == nil {
			return "devices of the last run have not been found again"
		}
	}
	return ""
}
