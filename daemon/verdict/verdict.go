// SPDX-License-Identifier: Apache-2.0

// Package verdict decides whether a device is healthy, for which reason not, and which work it waits for. It derives
// everything from facts.
package verdict

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/lease"
)

// Facts has everything on which a verdict depends.
type Facts struct {
	Seen     *device.Sighting // of the last inspection, or nil while the hardware is absent
	Known    bool             // whether it was found since the start
	Resource string           // in whose device list it is or would be
	Offered  bool             // whether it is in the list, from which it is removed only when it is certainly free
	Faults   Faults
	Lease    lease.Lease
	Rule     *device.Rule // of the resource, or nil
	Aside    string       // why it is offered neither on its own nor in a bundle, or empty
	Cordon   string       // why the operator cordoned it, or empty
	Disk     DiskFacts
	Same     bool     // whether the content of a disk is the same as when its tenant had gone
	Opened   error    // an error if the pod of another device can open it
	Delay    string   // why pending work is delayed, or empty
	Firmware string   // the [device.Rule].Init that has run
	Uninit   string   // why Init failed
	Work     string   // why it is Unhealthy during work on it, or empty
	Frozen   *Verdict // the verdict that applies during the effects of the daemon's own work, or nil
}

// Faults are those of the hardware itself.
type Faults struct {
	Marks    []string      // from events and counters, on the device and above it
	Warnings []string      // of the same kind, for a usable device
	Stuck    time.Duration // how long the hardware has not answered, or 0
	Flapping string        // why a device without a fault is not trusted yet
}

// Verdict is the health of a device with its reason.
type Verdict struct {
	Healthy bool
	Parked  bool // whether it is Unhealthy only because it is cordoned or changes its resource, so that a pod that holds it may start more containers
	Stale   bool // whether it is in the list only because a pod may still hold it
	Reason  string
	Warning string // a fault that does not prevent its use
	// Reserved is the reason why only the tenant that holds it may have it, because the host uses it or it contains
	// data. Barred is the same if nothing erases the data before the next start, or the reason why it must be cleared
	// first.
	Reserved, Barred string
	Since            time.Time // when Healthy or Reason last changed
}

var (
	// errElsewhere is the reason why a device is Unhealthy in the resource in which it was offered before. It cannot be
	// in two resources. A pod may hold it by the old name, and the kubelet could allocate it again by the new name.
	errElsewhere = errors.New("it belongs to another resource now,")
	// errNotBack is the reason why a device of the last run that has not been found since is Unhealthy.
	errNotBack = errors.New("not seen since metalplug was started")
)

// justLeft is the reason for a disk without a scrub that has not been read after its last pod yet.
const justLeft = "its last pod has just left it"

// beingCleared is the reason for a device that its resource clears after the last pod.
const beingCleared = "being cleared after its last pod"

// Unfit returns why the device must not be offered, or nil. A tenant that holds a device may use it. Its data is no
// reason if it is erased.
func (f *Facts) Unfit() error {
	err := f.Unusable()
	if err == nil && f.Aside != "" && !f.Lease.Held() {
		return errors.New(f.Aside)
	}
	return err
}

// Unusable is like [Facts.Unfit], but ignores bundles.
func (f *Facts) Unusable() error {
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

// unproven returns why a disk without a tenant must not be offered because evidence is missing, or nil.
func (f *Facts) unproven() error {
	switch {
	case f.Lease.Held(), !f.Evident(), f.Spared() && f.Same:
		return nil
	case f.Lease.Used && f.Offered: // see waiting
		return nil
	case f.Lease.Used:
		return fmt.Errorf("%w: %s", device.ErrUnproven, justLeft)
	}
	return f.doubt()
}

// Spared reports whether a disk is offered regardless of a tenant's data on it.
func (f *Facts) Spared() bool {
	erased := f.Rule != nil && (f.Rule.ErasedAtStart || f.Rule.ClearedAtRelease && f.Lease.Used)
	return f.Offered && f.Lease.Residue && erased
}

// erasable reports whether a tenant's data is the only reason against the device, and is erased before another tenant
// sees it.
func (f *Facts) erasable() bool {
	return f.Seen != nil && device.OnlyData(f.Seen.Offer) && f.Spared() && (f.Lease.Used || f.Same)
}

// Uncleared reports whether the device is cleared before another tenant gets it.
func (f *Facts) Uncleared() bool { return f.Lease.Used && f.Rule != nil && f.Rule.ClearedAtRelease }

// Sick returns the faults of the hardware from the last inspection, events and counters.
func (f *Facts) Sick() string {
	reasons := f.Faults.Marks
	switch {
	case f.Faults.Stuck > 0:
		reasons = append([]string{fmt.Sprintf("no answer from the hardware for %v", f.Faults.Stuck)}, reasons...)
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

// waiting returns what a device without a tenant waits for, or "".
func (f *Facts) waiting() string {
	switch {
	case f.Lease.Held():
		return ""
	case f.Lease.Used && f.Delay != "":
		return "its pod is gone, but " + f.Delay
	case f.Uncleared() && f.Cordon != "":
		return "to be cleared after its last pod, once it is uncordoned"
	case f.Uncleared():
		return beingCleared
	case f.Lease.Used && f.Evident() && !f.Spared():
		return fmt.Sprintf("%v: %s", device.ErrUnproven, justLeft)
	case f.Init() != "":
		return cmp.Or(f.Uninit, "being initialised")
	}
	return ""
}

// Init returns the unit that must run before the device is offered, or "".
func (f *Facts) Init() string {
	if !f.Offered || f.Rule == nil || f.Firmware == f.Rule.Init || f.Unfit() != nil {
		return ""
	}
	return f.Rule.Init
}

// Verdict returns the verdict on a device. No other function determines health and its reason.
func (f *Facts) Verdict() Verdict {
	var v Verdict
	unfit := f.Unfit()
	v.Stale = f.Offered && unfit != nil
	if unfit == nil && f.Seen.Offer != nil { // the rule overrules the reason
		v.Reserved = f.Seen.Offer.Error()
	}
	switch {
	case f.Uncleared():
		v.Barred = beingCleared
	case !f.erasable():
		v.Barred = v.Reserved
	}
	if unfit != nil {
		v.Reason = unfit.Error()
	} else {
		v.Warning = f.warning()
		v.Reason = cmp.Or(f.Sick(), f.Faults.Flapping, f.Lease.Failure, f.waiting())
		v.Healthy = v.Reason == ""
	}
	if f.Frozen != nil {
		v.Healthy, v.Reason = f.Frozen.Healthy, f.Frozen.Reason
	}
	return v
}

// Restrained returns the verdict after the operator's cordon and the daemon's own work are applied.
func (f *Facts) Restrained(v Verdict) Verdict {
	if f.Work != "" {
		v.Healthy, v.Reason = false, cmp.Or(v.Reason, f.Work)
	}
	if f.Aside != "" && f.Lease.Held() {
		v.park(f.Aside)
	}
	if f.Cordon != "" {
		v.park("cordoned: " + f.Cordon)
	}
	return v
}

// park makes the device Unhealthy for new pods.
func (v *Verdict) park(reason string) {
	if v.Reason != "" {
		reason += "; " + v.Reason
	}
	v.Healthy, v.Parked, v.Reason = false, v.Healthy || v.Parked, reason
}

// Todo is the work that a device without a tenant waits for.
type Todo string

// The kinds of work. The journal uses these texts if the work fails.
const (
	Nothing      Todo = ""
	EraseAdopted Todo = "adopted disk not erased"
	CleanUp      Todo = "device not cleared"
	ReadDisk     Todo = "disk not read"
	ReadAgain    Todo = "disk not read again" // the data that was found may be gone
	Initialise   Todo = "device not initialised"
	AskHolders   Todo = "disk not checked" // check which processes have it open
)

// Todo returns the work for which the device waits. A disk whose content is not a tenant's, or is not erased now, only
// needs to be free of the tenant's processes. The operator may be using a cordoned disk. So it is only read.
func (f *Facts) Todo() Todo {
	todo := f.diskTodo()
	switch {
	case f.Seen == nil, f.Lease.Held(), f.Cordon != "" && todo == EraseAdopted:
		return Nothing
	case f.Cordon != "", todo == EraseAdopted:
		return todo
	}
	class := f.Seen.Device.Class
	idle := f.Lease.Used && class != nil && class.Disks && (!f.Lease.Residue || f.Rule != nil && !f.Rule.ClearedAtRelease)
	switch {
	case f.Offered && (f.Lease.Used || f.Lease.Failure != ""), idle:
		return CleanUp
	case (todo == Nothing || todo == AskHolders) && f.Init() != "":
		return Initialise
	}
	return todo
}
