// SPDX-License-Identifier: Apache-2.0

// Package lease describes the life of a device between two tenants as one table of states, events and effects.
//
// [Table] is the whole of it. [Lease.Apply] looks up the row for an event and carries out its effects. Nothing else changes
// a lease. The package reads no hardware and no clock. A test writes the page docs/lease.md from the table.
package lease

import (
	"fmt"
	"slices"
)

// State is where a device stands between two tenants.
type State string

// States of a lease. The control socket and the metric metalplug_device_state use the same names.
const (
	Free      State = "free"      // the next tenant may have it
	Allocated State = "allocated" // a tenant has it, and no container was started with it
	Preparing State = "preparing" // the worker prepares it for a container
	InUse     State = "in-use"    // a container was started with it
	Released  State = "released"  // its last tenant has gone, and it is not cleaned up
	Clearing  State = "clearing"  // the worker cleans it up, or carries out the operator's order
	Failed    State = "failed"    // its preparation or clean-up failed
	Unproven  State = "unproven"  // a disk that is not proven to be unused
)

// States are all states, in the order of a life.
var States = []State{Unproven, Free, Allocated, Preparing, InUse, Released, Clearing, Failed}

// Hold is how far the tenant is that has a device.
type Hold string

// Holds of a lease.
const (
	NoTenant    Hold = ""            // no tenant has it
	Due         Hold = "due"         // a tenant has it, and its first container was not started
	Started     Hold = "started"     // a container of the tenant was started
	Interrupted Hold = "interrupted" // the node went down since then, and no container was started again
)

// Order is work that an operator ordered.
type Order string

// Orders of an operator.
const (
	NoOrder Order = ""
	Reset   Order = "reset"
	Erase   Order = "erase"
)

// Lease is the state of a device between two tenants. The zero value is not valid. A device begins as [Unproven] if it is
// offered on evidence, else as [Free]. A lease is a value. Its slice is replaced and never written.
type Lease struct {
	State   State    `json:"state"`
	Hold    Hold     `json:"hold,omitempty"`
	Used    bool     `json:"used,omitempty"`    // a container was started with it since it was last cleared
	Residue bool     `json:"residue,omitempty"` // a tenant of this node wrote the content of the disk
	Tenants []string `json:"tenants,omitempty"` // UIDs of the pods or claims that containers were started for since it was last cleared, sorted
	Medium  string   `json:"medium,omitempty"`  // of the disk that its containers were started with, see [device.Target.Medium]
	Failure string   `json:"failure,omitempty"` // why the last work failed, until work succeeds
	Order   Order    `json:"order,omitempty"`   // the work that failed, if the operator ordered it
}

// Valid returns why the lease has a word that [Table] does not know, or nil.
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

// Working reports whether the worker has the device. The worker causes the changes of the hardware in the meantime.
func (l Lease) Working() bool { return l.State == Preparing || l.State == Clearing }

// Equal reports whether two leases are the same.
func (l Lease) Equal(o Lease) bool {
	return l.State == o.State && l.Hold == o.Hold && l.Used == o.Used && l.Residue == o.Residue && l.Medium == o.Medium &&
		l.Failure == o.Failure && l.Order == o.Order && slices.Equal(l.Tenants, o.Tenants)
}

// Event is a change in the life of a device, with the facts that the table needs.
type Event struct {
	Name    Name
	Tenants []string // of started and listed, the UIDs that the kubelet's checkpoint names
	Medium  string   // of started, the medium of the disk
	Reason  string   // of failed, the cause
	Order   Order    // of failed, the work if the operator ordered it
	// Proven reports that the device can be offered without a tenant. It needs no evidence, its evidence is complete, or its
	// residue is erased before the next start.
	Proven bool
	Given  bool // of started, whether the kubelet gave the device to the next tenant since the work began
	// Residue reports, for proven, that a tenant's data is on the disk and is erased before the next start. For started and
	// listed it reports that the content counts as the tenant's from now on. The disk was proven or erased before, it is the
	// one that was prepared, and its resource does not share the disks of the host.
	Residue bool
}

// ErrEvent is the error for an event that a state does not have.
type ErrEvent struct {
	State State
	Event Name
}

// Error names the state and the event.
func (e *ErrEvent) Error() string {
	return fmt.Sprintf("a device in state %s has no event %s", e.State, e.Event)
}

// Apply returns the lease after an event, and the effects that the caller has to carry out. An event that the state does
// not have changes nothing and returns an [*ErrEvent].
func (l Lease) Apply(e Event) (Lease, []Effect, error) {
	for i := range Table {
		r := &Table[i]
		if r.Event != e.Name || !slices.Contains(r.From, l.State) || !l.meets(r.If, e) {
			continue
		}
		next := l
		if r.To != "" {
			next.State = r.To
		}
		var outside []Effect
		for _, do := range r.Do {
			if !next.carryOut(do, e) {
				outside = append(outside, do)
			}
		}
		return next, outside, nil
	}
	return l, nil, &ErrEvent{l.State, e.Name}
}

// meets reports whether the lease meets a condition of the table.
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

// carryOut changes the lease by an effect, and reports whether the effect asks for nothing else.
func (l *Lease) carryOut(do Effect, e Event) bool {
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
	default:
		return false
	}
	return true
}
