// SPDX-License-Identifier: Apache-2.0

// Package verdict uses facts to determine whether a device is healthy, why it is unhealthy, and which work is pending.
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

// Facts contains everything that the verdict on a device depends on.
type Facts struct {
	Seen     *device.Sighting // result of the last inspection, or nil while the hardware is absent
	Known    bool             // whether the device was found since metalplugd started
	Resource string           // the resource that offers the device, or would offer it
	Offered  bool             // whether the device is in the device list; it stays there while a pod may hold it
	Faults   Faults
	Lease    lease.Lease
	Rule     *device.Rule // rule of the resource, or nil
	Aside    string       // why the device is offered neither on its own nor in a bundle, or empty
	Cordon   string       // why the operator cordoned the device, or empty
	Claims   int          // number of claims that hold the device
	Disk     DiskFacts
	Same     bool        // whether the disk still has the content that its last tenant left
	Opened   error       // an error if a pod that holds another device can open this device, or if a pod could read an earlier pod's data; or nil
	Delay    string      // why pending work is delayed, or empty
	Firmware string      // the unit from [device.Rule].Init that has run
	Uninit   string      // why the Init unit failed, or empty
	Order    lease.Order // the operator's order that metalplug is carrying out, or empty
	Frozen   *Verdict    // the verdict to show while metalplug's own work changes the hardware, or nil
}

// Faults are faults in the hardware itself.
type Faults struct {
	Marks    []string      // faults in the device and its parents, from events and counters
	Warnings []string      // faults from events and counters that do not prevent pods from using the device
	Stuck    time.Duration // how long the hardware has not answered, or 0
	Flapping string        // why metalplug does not yet trust a device that currently has no fault
}

// Verdict is a device's health and the reason for it.
type Verdict struct {
	Healthy bool
	// Parked reports whether the device is Unhealthy only because of a cordon, a bundle or a claim, rather than because of a fault.
	// The pod that holds the device may still start more containers.
	Parked  bool
	Stale   bool // whether the device is in the list only because a pod may still hold it
	Reason  string
	Warning string // a fault that does not prevent pods from using the device
	// Reserved explains why no tenant except the current one may have the device, for example because the host is using the device.
	// Barred is [BeingCleared] while the device must be cleared, and otherwise the same text as Reserved. Barred is empty if
	// Reserved describes only data that is erased before the next container starts.
	Reserved, Barred string
	Since            time.Time // when Healthy or Reason last changed
}

var (
	// errElsewhere explains why a device is Unhealthy in the resource that used to offer it. A pod may still hold the device under
	// this old resource's name. If the new resource offered it too, the kubelet could give the device to a second pod.
	errElsewhere = errors.New("the device now belongs to resource")
	// errNotBack explains why a device from a saved file is Unhealthy until an inspection finds it.
	errNotBack = errors.New("not found since metalplugd started")
)

// lastPodEnded explains why a disk is not offered right after its last pod has ended. metalplug must first erase or read the
// disk.
const lastPodEnded = "the last pod has just ended"

// BeingCleared explains why a device is Unhealthy while metalplug resets or erases it after its last pod has ended.
const BeingCleared = "being cleared after the last pod"

// orderReasons explain why a device is Unhealthy while metalplug carries out the operator's order.
var orderReasons = map[lease.Order]string{
	lease.Reset: "being reset by the operator",
	lease.Erase: "being erased by the operator",
}

// Unfit returns why the device must not be offered, or nil. Unfit ignores data that will be erased. While a tenant holds the
// device, Unfit also ignores the fact that the device is in use. After a tenant has ended, metalplug cleans up the device only if
// the device is in a device list. A device that must be cleaned up therefore enters its own resource's list before it can join a
// bundle.
func (f *Facts) Unfit() error {
	err := f.Unusable()
	if err == nil && f.Aside != "" && !f.Lease.Held() && (f.Offered || !f.NeedsClearing()) {
		return errors.New(f.Aside)
	}
	return err
}

// CanLeave reports whether a disk with a tenant's data can leave its device list or its bundle before the data is erased. The
// disk can leave if the data will be erased anyway before the next container starts.
func (f *Facts) CanLeave() bool {
	return f.Aside != "" && f.OfferedWithData() && !f.NeedsClearing() && f.Unusable() == nil
}

// Unusable is like [Facts.Unfit], but ignores bundles.
func (f *Facts) Unusable() error {
	switch {
	case f.Seen == nil && !f.Known:
		return errNotBack
	case f.Seen == nil:
		return device.ErrGone
	case f.Offered && f.Seen.Resource != "" && f.Seen.Resource != f.Resource:
		return fmt.Errorf("%w %s, and moves there once no pod holds the device", errElsewhere, f.Seen.Resource)
	case f.Opened != nil:
		return f.Opened
	case f.Lease.Held() && device.OnlyInUse(f.Seen.Offer), f.isErasable():
		return nil
	case f.Seen.Offer != nil && (f.Lease.Held() || !device.OnlyData(f.Seen.Offer)):
		return f.Seen.Offer
	}
	return cmp.Or(f.missingProof(), f.Seen.Offer)
}

// missingProof describes the evidence that is still needed to offer a disk without a tenant, or returns nil.
func (f *Facts) missingProof() error {
	switch {
	case f.Lease.Held(), !f.Evident(), f.OfferedWithData() && f.Same:
		return nil
	case f.Lease.Used && f.Offered: // [Facts.pendingReason] returns the reason
		return nil
	case f.Lease.Used:
		return fmt.Errorf("%w: %s", device.ErrUnproven, lastPodEnded)
	}
	return f.missingEvidence()
}

// OfferedWithData reports whether a disk is offered even though it contains a tenant's data. This data is erased before the next
// container starts.
func (f *Facts) OfferedWithData() bool {
	erased := f.Rule != nil && (f.Rule.ErasedAtStart || f.Rule.ClearedAtRelease && f.Lease.Used)
	return f.Offered && f.Lease.Residue && erased
}

// isErasable reports whether a tenant's data is the only reason not to offer the disk, and will be erased before another tenant
// can read it.
func (f *Facts) isErasable() bool {
	return f.Seen != nil && device.OnlyData(f.Seen.Offer) && f.OfferedWithData() && (f.Lease.Used || f.Same)
}

// NeedsClearing reports whether the device must still be cleared before another tenant gets it.
func (f *Facts) NeedsClearing() bool { return f.Lease.Used && f.Rule != nil && f.Rule.ClearedAtRelease }

// HardwareFaults returns the hardware faults that the last inspection, events and counters have shown.
func (f *Facts) HardwareFaults() string {
	inspected := ""
	switch {
	case f.Faults.Stuck > 0:
		inspected = fmt.Sprintf("the hardware has not answered for %v", f.Faults.Stuck)
	case f.Seen.Health != nil:
		inspected = f.Seen.Health.Error()
	}
	return join(inspected, f.Faults.Marks)
}

// join joins texts with semicolons. The first one may be empty.
func join(first string, more []string) string {
	if first != "" {
		more = append([]string{first}, more...)
	}
	return strings.Join(more, "; ")
}

// Lost reports whether the pod that holds the device has lost it, because the hardware was removed or has a fault that only a
// reset can clear. The result is false while metalplug's own work changes the hardware.
func (f *Facts) Lost() bool {
	return f.Frozen == nil && (f.Known && f.Seen == nil || len(f.Faults.Marks) > 0)
}

// pendingReason describes the work that is pending for a device without a tenant, or returns "".
func (f *Facts) pendingReason() string {
	switch {
	case f.Lease.Held():
		return ""
	case f.Lease.Used && f.Delay != "":
		return "the pod has ended, but " + f.Delay
	case f.NeedsClearing() && f.Cordon != "":
		return "to be cleared once an operator uncordons the device"
	case f.NeedsClearing():
		return BeingCleared
	case f.Lease.Used && f.Evident() && !f.OfferedWithData():
		return fmt.Sprintf("%v: %s", device.ErrUnproven, lastPodEnded)
	case f.Init() != "":
		return cmp.Or(f.Uninit, "being initialised")
	}
	return ""
}

// Init returns the systemd unit that must still run before the device is offered, or "".
func (f *Facts) Init() string {
	if !f.Offered || f.Rule == nil || f.Firmware == f.Rule.Init || f.Unfit() != nil {
		return ""
	}
	return f.Rule.Init
}

// Verdict returns the verdict on a device. No other function determines whether a device is healthy.
func (f *Facts) Verdict() Verdict {
	var v Verdict
	unfit := f.Unfit()
	v.Stale = f.Offered && unfit != nil
	if unfit == nil && f.Seen.Offer != nil { // the device is offered despite this reason
		v.Reserved = f.Seen.Offer.Error()
	}
	switch {
	case f.NeedsClearing():
		v.Barred = BeingCleared
	case !f.isErasable():
		v.Barred = v.Reserved
	}
	switch {
	case unfit != nil && f.Unusable() == nil: // the device is not in a bundle, perhaps because of its own fault
		v.Reason = cmp.Or(f.HardwareFaults(), f.Faults.Flapping, f.Lease.Failure, unfit.Error())
	case f.NeedsClearing() && !f.Lease.Held() && f.Seen != nil && device.OnlyUnanswered(f.Seen.Offer):
		v.Reason = cmp.Or(f.Lease.Failure, f.pendingReason()) // no helper answers while the disk is being erased
	case unfit != nil:
		v.Reason = unfit.Error()
	default:
		v.Warning = join(f.Seen.Warning, f.Faults.Warnings)
		v.Reason = cmp.Or(f.HardwareFaults(), f.Faults.Flapping, f.Lease.Failure, f.pendingReason())
		v.Healthy = v.Reason == ""
	}
	if f.Frozen != nil {
		v.Healthy, v.Reason = f.Frozen.Healthy, cmp.Or(orderReasons[f.Order], f.Frozen.Reason)
	}
	return v
}

// Restrict returns the verdict v with the restrictions that follow from metalplug's own work, bundles, claims and the operator's
// cordon.
func (f *Facts) Restrict(v Verdict) Verdict {
	if f.Order != lease.NoOrder {
		v.Healthy, v.Reason = false, cmp.Or(v.Reason, orderReasons[f.Order])
	}
	if f.Aside != "" && f.Lease.Held() {
		v.park(f.Aside)
	}
	if f.Claims > 0 && (f.Rule == nil || f.Rule.Claims == 0) {
		v.park("a claim holds the device, but the device plugin now serves the resource")
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

// Todo is the work that is pending for a device without a tenant.
type Todo string

// Kinds of pending work. If the work fails, the log message contains the constant's text.
const (
	Nothing      Todo = ""
	EraseAdopted Todo = "adopted disk not erased"
	CleanUp      Todo = "device not cleared"
	ReadDisk     Todo = "disk not read"
	ReadAgain    Todo = "disk not read again" // read the disk again, because the data found earlier may be gone
	Initialise   Todo = "device not initialised"
	AskHolders   Todo = "disk not checked" // check which processes have the disk open
)

// Todo returns the work that is pending for a device. If a disk contains no tenant's data, or need not be erased yet, the only
// work is to check that the last tenant's processes have ended. An operator may be using a cordoned disk, so metalplug reads such
// a disk but does not write to it.
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
