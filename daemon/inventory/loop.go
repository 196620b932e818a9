// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/fault"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/udev"
)

// loop is the state that the goroutine of [Inventory.Run] owns. None of its methods reads hardware or waits.
type loop struct {
	*Inventory
	rules   []device.Rule
	entries map[string]*entry // by device ID
	owing   map[*entry]bool   // those that are owed
	began   time.Time         // when the daemon started
	found   map[*inspect.Subject]found
	notes   map[string]device.Note // for looks, by ID, without the zero ones
	noted   map[string]device.Note // the copy that the last look got, never written, or nil after a change
	disks
	faults  fault.Record
	cordons map[string]Cordon // by the ID of the device. It is replaced and never written
	publishing
	saving
	settling
}

// disks are the facts about disks.
type disks struct {
	evidence map[string]*evidence.Evidence // why they count as unused, by medium
	media    map[string]*entry             // the last entry that was seen with a medium
	twins    map[string]bool               // media that two disks have claimed at once since the start
	granted  map[string][]*entry           // the devices whose pods may open a node, by its number
}

// publishing collects the next snapshot.
type publishing struct {
	dirty       map[*entry]bool    // changed since the last publication
	stale       bool               // a device that is not offered changed since then
	unmatched   bool               // devices may make up bundles once no look is waiting
	bundles     map[string]*Status // as published, by ID
	resend      map[string]bool    // resources whose list is sent again though nothing changed
	cause       time.Time          // when the first event since the last publication arrived
	publishedAt time.Time
	changes     int  // how many devices have changed in that snapshot
	waits       bool // a timer wakes the loop for the next one
}

// saving is the work on the state file.
type saving struct {
	unsaved bool // an identity or a fault changed since the last save
	isTimed bool // a save is to come
	lost    bool // the state of the last run is lost, and each device found at the start may have been cordoned
}

// settling is the wait for the first snapshot, and for that of a reload.
type settling struct {
	isReady      bool
	deadline     time.Time       // unless another device is seen
	lastDeadline time.Time       // in any case
	ruled        []chan struct{} // closed once everything has been looked at by the newest rules
}

// found is what the last look found in a subject.
type found struct {
	entries   []*entry
	others    []*Status       // the hardware that has no identity
	contested map[string]bool // IDs that it claims and another subject has
}

func newLoop(i *Inventory) *loop {
	now := time.Now()
	l := &loop{
		Inventory:  i,
		rules:      i.Rules,
		entries:    make(map[string]*entry),
		owing:      make(map[*entry]bool),
		began:      now,
		found:      make(map[*inspect.Subject]found),
		notes:      make(map[string]device.Note),
		disks:      disks{evidence: make(map[string]*evidence.Evidence), media: make(map[string]*entry), twins: make(map[string]bool), granted: make(map[string][]*entry)},
		publishing: publishing{dirty: make(map[*entry]bool), resend: make(map[string]bool), bundles: make(map[string]*Status)},
		settling:   settling{deadline: now.Add(i.Settle), lastDeadline: now.Add(settleMost * i.Settle)},
	}
	l.inspector.Seen, l.inspector.Stuck, l.inspector.Host = l.seen, l.stuck, l.informed
	return l
}

// event takes in a hint.
func (l *loop) event(e udev.Event) {
	if l.cause.IsZero() {
		l.cause = e.Received
	}
	l.Log.Debug("uevent", "action", e.Action, "syspath", e.Device.SysPath)
	l.notice(e)
	l.inspector.Event(e)
}

// settle waits until the first snapshot can be published. Then the devices are enumerated and looked at, and the devices of the
// last run are back, or the time for that is over. udevd has processed the events of the boot before the daemon starts
// (metalplug-mounts.service).
func (l *loop) settle() {
	now, missing := time.Now(), l.missingYet()
	if !l.inspector.Enumerated() || missing != "" && now.Before(l.deadline) && now.Before(l.lastDeadline) {
		l.later(settlePoll, (*loop).settle)
		return
	}
	l.isReady = true
	if l.lost {
		l.cordonKnown()
	}
	if missing != "" {
		l.Log.Warn("started before all was seen", "err", missing)
	}
}

// missingYet returns why the first snapshot would be incomplete, or empty.
func (l *loop) missingYet() string {
	if looks := l.inspector.Open(); looks > 0 {
		return fmt.Sprintf("devices that are still looked at: %d", looks)
	}
	for _, e := range l.entries {
		if e.awaited && e.sighting == nil {
			return "devices of the last run are not back"
		}
	}
	return ""
}

// carryOut carries out the requests that are waiting.
func (l *loop) carryOut() {
	for _, r := range l.requests.take() {
		r(l)
	}
}
