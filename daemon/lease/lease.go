// SPDX-License-Identifier: Apache-2.0

// Package lease describes how a device passes from one tenant to the next, in one table of states, events and effects.
//
// All rules are in [Table]. [Lease.Apply] looks up the row for an event and changes the lease as the row specifies. No other
// function changes a lease. The package accesses neither the hardware nor the clock. A test generates docs/lease.md from the
// table.
package lease

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
)

// State is a stage that a device passes through from one tenant to the next.
type State string

// States of a lease. The control socket and the metric metalplug_device_state use the same names.
const (
	Free      State = "free"      // the next tenant may have the device
	Allocated State = "allocated" // a tenant has the device, but no container has been started with it
	Preparing State = "preparing" // metalplug is preparing the device for a container
	InUse     State = "in-use"    // a container was started with the device
	Released  State = "released"  // the last tenant has ended, and the device is not cleaned up yet
	Clearing  State = "clearing"  // metalplug is cleaning up the device, or carrying out the operator's order
	Failed    State = "failed"    // the preparation or the clean-up failed
	Unproven  State = "unproven"  // a disk without evidence that it is unused
)

// States lists all states in the order in which a device passes through them.
var States = []State{Unproven, Free, Allocated, Preparing, InUse, Released, Clearing, Failed}

// Hold is the stage that a device's current tenant has reached.
type Hold string

// Stages that a tenant can reach.
const (
	NoTenant    Hold = ""            // no tenant has the device
	Due         Hold = "due"         // a tenant has the device, but no container has been started with it
	Started     Hold = "started"     // a container of the tenant was started
	Interrupted Hold = "interrupted" // the node restarted after a container was started, and no container has been started since
)

// Order is the work that an operator requested with the command metalplugctl reset.
type Order string

// Work that an operator can request.
const (
	NoOrder Order = ""
	Reset   Order = "reset"
	Erase   Order = "erase"
)

// Lease records which stage a device has reached on its way from one tenant to the next. The zero value is not valid. A device
// that needs evidence begins as [Unproven], and every other device begins as [Free]. Leases are copied, so to change Tenants,
// replace the slice instead of modifying it.
type Lease struct {
	State   State `json:"state"`
	Hold    Hold  `json:"hold,omitempty"`
	Used    bool  `json:"used,omitempty"`    // a container was started with the device since the device was last cleared
	Residue bool  `json:"residue,omitempty"` // a tenant on this node wrote the disk's content
	// Tenants is a sorted list of the tenants that have started a container since the device was last cleared. A pod is represented
	// by its UID, and a claim by the result of [OfClaim].
	Tenants []string `json:"tenants,omitempty"`
	// Medium is the disk's medium at the time when these containers were started (see [device.Target.Medium]).
	Medium  string `json:"medium,omitempty"`
	Failure string `json:"failure,omitempty"` // why the most recent work failed, or empty if it succeeded
	Order   Order  `json:"order,omitempty"`   // the operator's order if its work failed, or empty
}

// Valid returns an error if the lease contains a value that is not in [Table].
func (l Lease) Valid() error {
	switch {
	case !slices.Contains(States, l.State):
		return fmt.Errorf("invalid state %q", l.State)
	case !slices.Contains([]Hold{NoTenant, Due, Started, Interrupted}, l.Hold):
		return fmt.Errorf("invalid hold %q", l.Hold)
	case !slices.Contains([]Order{NoOrder, Reset, Erase}, l.Order):
		return fmt.Errorf("invalid order %q", l.Order)
	}
	return nil
}

// Held reports whether a tenant has the device.
func (l Lease) Held() bool { return l.Hold != NoTenant }

// OfClaim returns the text that represents a claim in [Lease].Tenants. The slash in this text distinguishes it from a pod UID.
func OfClaim(uid string) string { return "claim/" + uid }

// Pods returns the UIDs of the pods that have had the device since the device was last cleared. If a claim has had the device,
// the result "all" is false, because a claim's pods are unknown.
func (l Lease) Pods() (pods []string, all bool) {
	if slices.ContainsFunc(l.Tenants, func(uid string) bool { return strings.HasPrefix(uid, OfClaim("")) }) {
		return nil, false
	}
	return l.Tenants, true
}

// Working reports whether metalplug is working on the device. Until the work ends, metalplug assumes that the work causes all
// hardware changes.
func (l Lease) Working() bool { return l.State == Preparing || l.State == Clearing }

// Event is something that happens to a device, with the facts that the table needs.
type Event struct {
	Name    Name
	Tenants []string // only for the events "started" and "listed": the UIDs in the kubelet's checkpoint
	Medium  string   // only for the event "started": the disk's medium
	Reason  string   // only for the event "failed": the cause
	Order   Order    // only for the event "failed": the work, if the operator ordered it
	// Proven reports whether the device can be offered when it has no tenant. Such a device needs no evidence, has complete
	// evidence, or has residue that is erased before the next start.
	Proven bool
	Given  bool // only for the event "started": whether the kubelet gave the device to the next tenant during the work
	// For the event "proven", Residue is true if the disk contains a tenant's data that is erased before the next start. For the
	// events "started" and "listed", Residue is true if metalplug attributes all later content to the tenant. metalplug attributes
	// the content under three conditions. The disk was erased or proven to be unused. The disk is still the disk that was prepared.
	// The disk's resource does not offer disks that the host uses.
	Residue bool
}

// ErrEvent means that [Table] does not allow the event in the current state.
var ErrEvent = errors.New("event not allowed")

// Apply returns the lease after an event. If endsEvidence is true, the caller must discard the evidence about the disk. If the
// table has no row for the event in this state, Apply changes nothing and returns an [ErrEvent].
func (l Lease) Apply(e Event) (next Lease, endsEvidence bool, err error) {
	for i := range Table {
		r := &Table[i]
		if r.Event != e.Name || !slices.Contains(r.From, l.State) || !l.meets(r.If, e) {
			continue
		}
		next = l
		if r.To != "" {
			next.State = r.To
		}
		for _, do := range r.Do {
			next.carryOut(do, e)
		}
		return next, slices.Contains(r.Do, EndEvidence), nil
	}
	return l, false, fmt.Errorf("%w: %s in state %s", ErrEvent, e.Name, l.State)
}

// meets reports whether the lease meets a condition in the table.
func (l Lease) meets(c Condition, e Event) bool {
	switch c {
	case Always:
		return true
	case IfDue:
		return l.Hold == Due
	case IfHeld:
		return l.Held()
	case IfUsed:
		return l.Used
	case IfFailed:
		return l.Failure != ""
	case IfProven:
		return e.Proven
	case IfInterrupted:
		return l.Hold == Interrupted
	case IfGiven:
		return e.Given && l.Hold == Due
	}
	panic("unknown condition " + string(c))
}

// carryOut applies an effect to the lease. The caller of [Lease.Apply] carries out EndEvidence.
func (l *Lease) carryOut(do Effect, e Event) {
	switch do {
	case SetDue:
		l.Hold = Due
	case SetStarted:
		l.Hold = Started
	case ClearHold:
		l.Hold = NoTenant
	case InterruptTenant:
		if l.Hold == Started {
			l.Hold = Interrupted
		}
	case SetUsed:
		l.Used, l.Medium = true, e.Medium
		l.Tenants = slices.Compact(slices.Sorted(slices.Values(slices.Concat(l.Tenants, e.Tenants))))
	case ClearUsed:
		l.Used, l.Medium, l.Tenants = false, "", nil
	case SetResidue:
		l.Residue = e.Residue
	case ClearResidue:
		l.Residue = false
	case SetFailure:
		l.Failure, l.Order = e.Reason, e.Order
	case ClearFailure:
		l.Failure, l.Order = "", NoOrder
	case LapseErase:
		if l.Order == Erase {
			l.Order = NoOrder
		}
	}
}

// Claim is a ResourceClaim that holds a device.
type Claim struct {
	api.ClaimRef
	Ready bool `json:"ready,omitempty"` // whether the device has been prepared, in this boot, for containers that use the claim
}

// Claims lists the claims that hold a device, in the order in which they got it. Only a device with shares can have several
// claims. The methods return new slices and do not modify the old ones.
type Claims []Claim

// Has reports whether the claim with the given UID holds the device.
func (c Claims) Has(uid string) bool {
	return slices.ContainsFunc(c, func(one Claim) bool { return one.UID == uid })
}

// Ready reports whether the device is prepared for the claim with the given UID.
func (c Claims) Ready(uid string) bool {
	return slices.ContainsFunc(c, func(one Claim) bool { return one.UID == uid && one.Ready })
}

// Without returns all claims except the one with the given UID.
func (c Claims) Without(uid string) Claims {
	return slices.DeleteFunc(slices.Clone(c), func(one Claim) bool { return one.UID == uid })
}

// Started returns the claims as they are after the device has been prepared for these tenants.
func (c Claims) Started(tenants []string) Claims {
	c = slices.Clone(c)
	for i := range c {
		c[i].Ready = c[i].Ready || slices.Contains(tenants, OfClaim(c[i].UID))
	}
	return c
}

// Rebooted returns the claims as they are after a boot, when no device is prepared.
func (c Claims) Rebooted() Claims {
	c = slices.Clone(c)
	for i := range c {
		c[i].Ready = false
	}
	return c
}
