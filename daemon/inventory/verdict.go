// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/lease"
)

// Facts are all that a verdict depends on.
type Facts struct {
	Seen     *device.Sighting // of the last look, or nil while the hardware is not there
	Known    bool             // whether it was seen since the start
	Resource string           // in whose list it is or would be
	Offered  bool             // whether it is in the list, which it leaves only when it is certainly free
	Faults   Faults
	Lease    lease.Lease
	Rule     *device.Rule // of the resource, or nil
	Aside    string       // why it is offered neither on its own nor in a bundle, or empty
	Cordon   *Cordon      // or nil
	Disk     DiskFacts
	Opened   error    // why the pod of another device can open it, or nil
	Lingerer string   // the process that has it open though its tenant has gone
	Firmware string   // the [device.Rule].Init that was carried out
	Uninit   string   // why that could not be carried out
	Work     string   // why it is Unhealthy during work on it, or empty
	Frozen   *settled // the verdict that applies while the daemon's own work is seen, or nil
}

// DiskFacts are the facts about the content of a disk.
type DiskFacts struct {
	Evident bool  // whether it is offered only on evidence
	Doubt   error // why it is not proven to be unused, or nil
	Same    bool  // whether its content is the same as when its tenant had gone
}

// Faults are those of the hardware itself.
type Faults struct {
	Marks    []string // of events and counters, on the device and above it
	Warnings []string // of the same, while the device can be used
	Stuck    bool     // a look does not come back
	Flapping string   // why a device without a fault is not trusted yet
}

// Verdict is the health of a device with its reason.
type Verdict struct {
	Healthy bool
	Parked  bool // whether it is Unhealthy only because it is cordoned or changes over, so that a pod that holds it may start containers again
	Stale   bool // whether it is in the list only because a pod may still hold it
	Reason  string
	Warning string // a fault with which it can be used
	// Reserved is why only the tenant that holds it may have it, since the host uses it or it holds data. Barred is the same
	// where nothing erases that before the next start, or the reason why it has to be cleared first.
	Reserved, Barred string
	Since            time.Time // when Healthy or Reason last changed
}

var (
	// errElsewhere is why a device is Unhealthy in a resource that it belonged to when it was offered. It cannot be in both. A
	// pod may hold it by the old name, and the kubelet would give it out once more by the new.
	errElsewhere = errors.New("it belongs to another resource now,")
	// errNotBack is why a device of the last run is Unhealthy that has not been seen since.
	errNotBack = errors.New("not seen since metalplug was started")
)

// justLeft is the reason of a disk that is not erased after its last pod, and not read yet.
const justLeft = "its last pod has just left it"

// beingCleared is the reason of a device that its resource clears after the last pod.
const beingCleared = "being cleared after its last pod"

// unfit returns why the device must not be offered, or nil. A tenant that has a device may use it. Its data is not a reason
// where the data is erased.
func (f *Facts) unfit() error {
	err := f.unusable()
	if err == nil && f.Aside != "" && !f.Lease.Held() {
		return errors.New(f.Aside)
	}
	return err
}

// unusable is unfit without bundles.
func (f *Facts) unusable() error {
	switch {
	case f.Seen == nil && !f.Known:
		return errNotBack
	case f.Seen == nil:
		return device.ErrGone
	case f.Offered && f.Seen.Resource != "" && f.Seen.Resource != f.Resource:
		return fmt.Errorf("%w %s: it changes over once no pod holds it", errElsewhere, f.Seen.Resource)
	case f.Opened != nil:
		return f.Opened
	case f.Lease.Held() && device.OnlyInUse(f.Seen.Offer), f.erasable():
		return nil
	case f.Seen.Offer != nil && (f.Lease.Held() || !device.OnlyData(f.Seen.Offer)):
		return f.Seen.Offer
	}
	return cmp.Or(f.unproven(), f.Seen.Offer)
}

// unproven returns why a disk without a tenant must not be offered for want of evidence, or nil.
func (f *Facts) unproven() error {
	switch {
	case f.Lease.Held(), !f.Disk.Evident, f.spared() && f.Disk.Same:
		return nil
	case f.Lease.Used && f.Offered: // see waiting
		return nil
	case f.Lease.Used:
		return fmt.Errorf("%w: %s", device.ErrUnproven, justLeft)
	}
	return f.Disk.Doubt
}

// spared reports whether a disk is offered with any data of a tenant.
func (f *Facts) spared() bool {
	erased := f.Rule != nil && (f.Rule.ErasedAtStart || f.Rule.ClearedAtRelease && f.Lease.Used)
	return f.Offered && f.Lease.Residue && erased
}

// erasable reports whether a tenant's data is the only reason against a device, and is erased before another tenant sees it.
func (f *Facts) erasable() bool {
	return f.Seen != nil && device.OnlyData(f.Seen.Offer) && f.spared() && (f.Lease.Used || f.Disk.Same)
}

// uncleared reports whether the device is cleared before another tenant gets it.
func (f *Facts) uncleared() bool { return f.Lease.Used && f.Rule != nil && f.Rule.ClearedAtRelease }

// sick returns the faults of the hardware by the last look, events and counters.
func (f *Facts) sick() string {
	reasons := f.Faults.Marks
	switch {
	case f.Faults.Stuck:
		reasons = append([]string{fmt.Sprintf("no answer from the hardware for %v", stuckLook)}, reasons...)
	case f.Seen.Health != nil:
		reasons = append([]string{f.Seen.Health.Error()}, reasons...)
	}
	return strings.Join(reasons, "; ")
}

func (f *Facts) warning() string {
	if f.Seen.Warning == "" {
		return strings.Join(f.Faults.Warnings, "; ")
	}
	return strings.Join(append([]string{f.Seen.Warning}, f.Faults.Warnings...), "; ")
}

// waiting returns the reason for which a device without a tenant waits, or empty.
func (f *Facts) waiting() string {
	switch {
	case f.Lease.Held():
		return ""
	case f.Lease.Used && f.Lingerer != "":
		return "its pod is gone, but " + f.Lingerer
	case f.uncleared() && f.Cordon != nil:
		return "to be cleared after its last pod, once it is uncordoned"
	case f.uncleared():
		return beingCleared
	case f.Lease.Used && f.Disk.Evident && !f.spared():
		return fmt.Sprintf("%v: %s", device.ErrUnproven, justLeft)
	case f.init() != "":
		return cmp.Or(f.Uninit, "being initialised")
	}
	return ""
}

// init returns the unit that has to run before a device is offered, or empty.
func (f *Facts) init() string {
	if !f.Offered || f.Rule == nil || f.Firmware == f.Rule.Init || f.unfit() != nil {
		return ""
	}
	return f.Rule.Init
}

// Verdict returns the verdict on a device. It is the only place in which health and its reason are made.
func (f *Facts) Verdict() Verdict {
	var v Verdict
	unfit := f.unfit()
	v.Stale = f.Offered && unfit != nil
	if unfit == nil && f.Seen.Offer != nil { // forgiven
		v.Reserved = f.Seen.Offer.Error()
	}
	switch {
	case f.uncleared():
		v.Barred = beingCleared
	case !f.erasable():
		v.Barred = v.Reserved
	}
	if unfit != nil {
		v.Reason = unfit.Error()
	} else {
		v.Warning = f.warning()
		v.Reason = cmp.Or(f.sick(), f.Faults.Flapping, f.Lease.Failure, f.waiting())
		v.Healthy = v.Reason == ""
	}
	if f.Frozen != nil {
		v.Healthy, v.Reason = f.Frozen.Healthy, f.Frozen.Reason
	}
	return v
}

// restrained returns the verdict with the operator's cordon and the daemon's own work.
func (f *Facts) restrained(v Verdict) Verdict {
	if f.Work != "" {
		v.Healthy, v.Reason = false, cmp.Or(v.Reason, f.Work)
	}
	if f.Aside != "" && f.Lease.Held() {
		v.park(f.Aside)
	}
	if f.Cordon != nil {
		v.park("cordoned: " + f.Cordon.Reason)
	}
	return v
}

// park makes a device Unhealthy for new pods.
func (v *Verdict) park(reason string) {
	if v.Reason != "" {
		reason += "; " + v.Reason
	}
	v.Healthy, v.Parked, v.Reason = false, v.Healthy || v.Parked, reason
}

// facts are those of an entry as it stands.
func (l *loop) facts(e *entry) *Facts {
	f := &Facts{
		Seen: e.sighting, Known: e.owner != nil, Resource: e.resource, Offered: e.offered, Lease: e.lease, Rule: l.rule(e.resource), Aside: e.aside,
		Disk: DiskFacts{Evident: l.needsEvidence(e), Same: e.left == e.seen}, Opened: l.opened(e), Firmware: e.initialised, Uninit: e.uninit,
	}
	f.Faults.Stuck = e.stuck
	f.Faults.Marks, f.Faults.Warnings = l.marks.on(e)
	if w := e.window; w != nil {
		f.Lingerer, f.Work = w.lingerer, w.why
	}
	if c, ok := l.cordons[e.device.ID]; ok {
		f.Cordon = &c
	}
	if f.Disk.Evident {
		f.Disk.Doubt = l.doubt(e)
	}
	return f
}

// judge makes the status of a device.
func (l *loop) judge(e *entry, now time.Time) *Status {
	e.line = nil
	l.reconcile(e, now)
	f := l.facts(e)
	unfit := f.unfit()
	e.offered = e.offered || unfit == nil && e.resource != ""
	f.Offered = e.offered
	frozen := e.frozen(now)
	if frozen {
		f.Frozen = e.settled
	}
	if unfit == nil {
		if !frozen {
			f.Faults.Flapping = e.distrust(f.sick(), now)
		}
		l.calmLater(e, now)
	}
	s := &Status{Device: e.device, Lease: e.lease, Verdict: f.Verdict(), As: e.as, Bundle: e.bundle}
	if s.Observation = e.observation(); f.Frozen != nil {
		s.Present, s.Allocation = f.Frozen.Present, f.Frozen.Allocation
	} else {
		e.settled = &settled{s.Verdict, s.Observation}
	}
	if s.Nodes = s.Allocation.Nodes; len(s.Nodes) == 0 && e.sighting != nil {
		s.Nodes = e.sighting.Nodes
	}
	s.Verdict, s.Cordon = f.restrained(s.Verdict), f.Cordon
	if e.offered {
		s.Resource = e.resource
	}
	l.fillIn(e, f, s)
	s.Since = now
	if old := e.status; old != nil && old.Healthy == s.Healthy && old.Gist() == s.Gist() {
		s.Since = old.Since
	}
	return s
}

// observation returns the facts of the last look.
func (e *entry) observation() Observation {
	if e.sighting == nil {
		return Observation{}
	}
	return Observation{Present: true, Allocation: e.sighting.Allocation, Target: e.sighting.Target}
}

// fillIn fills in the work that a device waits for, and the facts about its disk.
func (l *loop) fillIn(e *entry, f *Facts, s *Status) {
	if s.Taker = e.resource; e.sighting != nil && !e.offered {
		s.Taker = e.sighting.Resource
	}
	if e.sighting != nil && e.sighting.Offer != nil && !device.OnlyData(e.sighting.Offer) {
		s.Blocked = e.sighting.Offer.Error()
	}
	s.Fingerprint, s.LeftBlank, s.Moved = e.left.fingerprint, e.left.blank, e.lease.Held() && e.moved()
	if sectors := e.wrote.Sectors; e.wrote.In == l.here(e) {
		s.Written = &sectors
	}
	readable := l.readable(e)
	if v := l.evidenceOf(e); v != nil {
		s.Evidence = *v
	} else if readable {
		s.Evidence = Evidence{In: l.here(e), Written: e.sighting.Written}
	}
	s.Init = f.init()
	if s.Todo = f.todo(s, readable); s.Todo == Nothing && f.Disk.Evident && !s.Held() && !s.Used && l.complete(e) && !l.asked(e) {
		s.Todo = AskHolders
	}
}

// Todo is the work that a device without a tenant waits for.
type Todo string

// The works. The journal has these words if one fails.
const (
	Nothing      Todo = ""
	EraseAdopted Todo = "adopted disk not erased"
	CleanUp      Todo = "device not cleared"
	ReadDisk     Todo = "disk not read"
	ReadAgain    Todo = "disk not read again" // the data that was found on it may be gone
	Initialise   Todo = "device not initialised"
	AskHolders   Todo = "disk not checked" // which processes have it open
)

// todo returns the work that a device waits for. A disk whose content is not a tenant's, or that nothing erases now, has only
// to be free of the tenant's processes.
func (f *Facts) todo(s *Status, readable bool) Todo {
	isDisk := s.Device.Class != nil && s.Device.Class.Disks
	idle := f.Lease.Used && isDisk && (!f.Lease.Residue || f.Rule != nil && !f.Rule.ClearedAtRelease)
	switch {
	case f.Seen == nil, f.Lease.Held():
	case f.Cordon != nil && !readable: // the operator may be using it
	case s.Evidence.Scrub != "":
		return EraseAdopted
	case f.Offered && (f.Lease.Used || f.Lease.Failure != ""), idle:
		return CleanUp
	case readable && s.Evidence.Found != "":
		return ReadAgain
	case readable:
		return ReadDisk
	case s.Init != "":
		return Initialise
	}
	return Nothing
}
