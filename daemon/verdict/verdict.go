// SPDX-License-Identifier: Apache-2.0

// Package verdict says whether a device is healthy, why not, and which work it waits for. It makes all of it out of facts alone.
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
	Cordon   string       // why the operator keeps it from new tenants, or empty
	Disk     DiskFacts
	Opened   error    // why the pod of another device can open it, or nil
	Delay    string   // why the work that it waits for is not done, or empty
	Firmware string   // the [device.Rule].Init that was carried out
	Uninit   string   // why that could not be carried out
	Work     string   // why it is Unhealthy during work on it, or empty
	Frozen   *Verdict // the verdict that applies while the daemon's own work is seen, or nil
}

// Faults are those of the hardware itself.
type Faults struct {
	Marks    []string      // of events and counters, on the device and above it
	Warnings []string      // of the same, while the device can be used
	Stuck    time.Duration // for how long the hardware does not answer, or 0
	Flapping string        // why a device without a fault is not trusted yet
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

// Unfit returns why the device must not be offered, or nil. A tenant that has a device may use it. Its data is not a reason
// where the data is erased.
func (f *Facts) Unfit() error {
	err := f.Unusable()
	if err == nil && f.Aside != "" && !f.Lease.Held() {
		return errors.New(f.Aside)
	}
	return err
}

// Unusable is [Facts.Unfit] without bundles.
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

// unproven returns why a disk without a tenant must not be offered for want of evidence, or nil.
func (f *Facts) unproven() error {
	switch {
	case f.Lease.Held(), !f.Evident(), f.Spared() && f.Disk.Same:
		return nil
	case f.Lease.Used && f.Offered: // see waiting
		return nil
	case f.Lease.Used:
		return fmt.Errorf("%w: %s", device.ErrUnproven, justLeft)
	}
	return f.doubt()
}

// Spared reports whether a disk is offered with any data of a tenant.
func (f *Facts) Spared() bool {
	erased := f.Rule != nil && (f.Rule.ErasedAtStart || f.Rule.ClearedAtRelease && f.Lease.Used)
	return f.Offered && f.Lease.Residue && erased
}

// erasable reports whether a tenant's data is the only reason against a device, and is erased before another tenant sees it.
func (f *Facts) erasable() bool {
	return f.Seen != nil && device.OnlyData(f.Seen.Offer) && f.Spared() && (f.Lease.Used || f.Disk.Same)
}

// Uncleared reports whether the device is cleared before another tenant gets it.
func (f *Facts) Uncleared() bool { return f.Lease.Used && f.Rule != nil && f.Rule.ClearedAtRelease }

// Sick returns the faults of the hardware by the last look, events and counters.
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

// waiting returns the reason for which a device without a tenant waits, or empty.
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

// Init returns the unit that has to run before a device is offered, or empty.
func (f *Facts) Init() string {
	if !f.Offered || f.Rule == nil || f.Firmware == f.Rule.Init || f.Unfit() != nil {
		return ""
	}
	return f.Rule.Init
}

// Verdict returns the verdict on a device. It is the only place in which health and its reason are made.
func (f *Facts) Verdict() Verdict {
	var v Verdict
	unfit := f.Unfit()
	v.Stale = f.Offered && unfit != nil
	if unfit == nil && f.Seen.Offer != nil { // forgiven
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

// Restrained returns the verdict with the operator's cordon and the daemon's own work.
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

// park makes a device Unhealthy for new pods.
func (v *Verdict) park(reason string) {
	if v.Reason != "" {
		reason += "; " + v.Reason
	}
	v.Healthy, v.Parked, v.Reason = false, v.Healthy || v.Parked, reason
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

// Todo returns the work that a device waits for. A disk whose content is not a tenant's, or that nothing erases now, has only
// to be free of the tenant's processes. The operator may be using a disk that is cordoned. It is only read.
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
