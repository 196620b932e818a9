// SPDX-License-Identifier: Apache-2.0

package lease

// Name is the name of an event.
type Name string

// Events that can happen to a lease.
const (
	Allocate Name = "allocate"  // the kubelet gave the device to a pod or a claim
	Listed   Name = "listed"    // the kubelet started a tenant's container without asking metalplugd, and lists the tenant
	Prepare  Name = "prepare"   // a container of the tenant is about to start
	Start    Name = "started"   // the device is prepared, and the container starts
	Refused  Name = "refused"   // the work ended without changing the device, or metalplugd ended during the work
	Fail     Name = "failed"    // the work failed
	Gone     Name = "gone"      // the kubelet reports that no tenant has the device
	Clear    Name = "clear"     // a clean-up or the operator's order begins
	Cleared  Name = "cleared"   // the clean-up is done
	Mended   Name = "recovered" // the operator's order is done, and the clean-up is still pending
	Erased   Name = "erased"    // an erasure was verified
	Replaced Name = "replaced"  // the disk may have been replaced by another one
	Changed  Name = "changed"   // the content is no longer the data that a tenant on this node left, or the host uses the disk
	Proven   Name = "proven"    // evidence shows that the disk is unused
	Doubted  Name = "doubted"   // the evidence is no longer valid
	Adopted  Name = "adopted"   // the operator allows metalplug to erase the disk
	Reboot   Name = "reboot"    // the node rebooted, and another disk may have the ID
)

// Condition is the condition of a row. For each state and event, the first row whose condition is met applies.
type Condition string

// Conditions in the table.
const (
	Always        Condition = ""
	IfDue         Condition = "a tenant waits for its first start"
	IfHeld        Condition = "a tenant has the device"
	IfUsed        Condition = "used since the last clean-up"
	IfFailed      Condition = "the previous work failed"
	IfProven      Condition = "the device can be offered"
	IfGiven       Condition = "the next tenant got the device during the work, and waits"
	IfInterrupted Condition = "the node restarted since the container started"
)

// Effect is a change that a row makes in addition to the state change.
type Effect string

// Effects on the lease itself.
const (
	SetDue          Effect = "mark the tenant as waiting"
	SetStarted      Effect = "mark the tenant as started"
	ClearHold       Effect = "clear the tenant"
	InterruptTenant Effect = "mark a started tenant as interrupted"
	SetUsed         Effect = "record the tenants"
	ClearUsed       Effect = "clear the recorded tenants"
	SetResidue      Effect = "attribute the content to the tenant"
	ClearResidue    Effect = "stop attributing the content to a tenant"
	SetFailure      Effect = "record the failure"
	ClearFailure    Effect = "clear the failure"
	LapseErase      Effect = "cancel an order to erase"
)

// EndEvidence is the effect that the caller of [Lease.Apply] carries out.
const EndEvidence Effect = "discard the evidence"

// Row describes what an event does to a lease in one of the states in From. To is empty if the state does not change.
type Row struct {
	From  []State
	Event Name
	If    Condition
	To    State
	Do    []Effect
}

// Table describes the life cycle of a device. For each state and event, the first row whose condition is met applies.
var Table = []Row{
	// A tenant gets the device. The kubelet decides this, so every state accepts the event. metalplug can still refuse to
	// prepare the device.
	{[]State{Free, Unproven, Released}, Allocate, Always, Allocated, []Effect{SetDue}},
	{[]State{Preparing, InUse, Clearing, Failed}, Allocate, IfInterrupted, "", []Effect{SetDue, ClearResidue}},
	{[]State{Allocated, Preparing, InUse, Clearing, Failed}, Allocate, Always, "", []Effect{SetDue}},
	{[]State{Free, Unproven, Released, Allocated, InUse}, Listed, Always, InUse, []Effect{SetUsed, SetStarted, SetResidue, EndEvidence}},
	{[]State{Preparing, Clearing, Failed}, Listed, IfHeld, "", nil},
	{[]State{Preparing, Clearing, Failed}, Listed, Always, "", []Effect{SetUsed, SetStarted, EndEvidence}},

	// A container starts.
	{[]State{Free, Unproven, Allocated, InUse, Released, Failed}, Prepare, Always, Preparing, nil},
	{[]State{Preparing}, Start, IfGiven, Allocated, []Effect{SetUsed, SetResidue, ClearFailure, EndEvidence}},
	{[]State{Preparing}, Start, Always, InUse, []Effect{SetUsed, SetStarted, SetResidue, ClearFailure, EndEvidence}},

	// The tenant has ended.
	{[]State{InUse}, Gone, IfInterrupted, Released, []Effect{ClearHold, ClearResidue}},
	{[]State{Preparing, Clearing, Failed}, Gone, IfInterrupted, "", []Effect{ClearHold, ClearResidue}},
	{[]State{InUse}, Gone, Always, Released, []Effect{ClearHold}},
	{[]State{Allocated}, Gone, IfUsed, Released, []Effect{ClearHold}},
	{[]State{Allocated}, Gone, IfProven, Free, []Effect{ClearHold}},
	{[]State{Allocated}, Gone, Always, Unproven, []Effect{ClearHold}},
	{[]State{Free, Unproven, Released, Preparing, Clearing, Failed}, Gone, Always, "", []Effect{ClearHold}},

	// The device is cleaned up, or the operator's order is carried out.
	{[]State{Free, Unproven, Released, Failed}, Clear, Always, Clearing, nil},
	{[]State{Clearing}, Cleared, IfHeld, Allocated, []Effect{ClearUsed, ClearFailure}},
	{[]State{Clearing}, Cleared, IfProven, Free, []Effect{ClearUsed, ClearFailure}},
	{[]State{Clearing}, Cleared, Always, Unproven, []Effect{ClearUsed, ClearFailure}},
	{[]State{Clearing}, Mended, IfHeld, Allocated, []Effect{ClearFailure}},
	{[]State{Clearing}, Mended, IfUsed, Released, []Effect{ClearFailure}},
	{[]State{Clearing}, Mended, IfProven, Free, []Effect{ClearFailure}},
	{[]State{Clearing}, Mended, Always, Unproven, []Effect{ClearFailure}},
	{[]State{Preparing, Clearing}, Erased, Always, "", []Effect{ClearResidue}},

	// The work fails, or ends without doing anything. After a restart of metalplugd, nothing is proven before the first inspection.
	{[]State{Preparing, Clearing}, Fail, Always, Failed, []Effect{SetFailure}},
	{[]State{Preparing, Clearing}, Refused, IfFailed, Failed, nil},
	{[]State{Preparing, Clearing}, Refused, IfDue, Allocated, nil},
	{[]State{Preparing, Clearing}, Refused, IfHeld, InUse, nil},
	{[]State{Preparing, Clearing}, Refused, IfUsed, Released, nil},
	{[]State{Preparing, Clearing}, Refused, IfProven, Free, nil},
	{[]State{Preparing, Clearing}, Refused, Always, Unproven, nil},

	// The disk or its content was replaced.
	{[]State{Free}, Replaced, Always, Unproven, []Effect{ClearResidue, LapseErase}},
	{[]State{Unproven, Allocated, Preparing, InUse, Released, Clearing, Failed}, Replaced, Always, "", []Effect{ClearResidue, LapseErase}},
	{[]State{Free}, Changed, IfProven, "", []Effect{ClearResidue}},
	{[]State{Free}, Changed, Always, Unproven, []Effect{ClearResidue, LapseErase, EndEvidence}},
	{[]State{Unproven, Allocated, Preparing, InUse, Released, Clearing, Failed}, Changed, Always, "", []Effect{ClearResidue, LapseErase, EndEvidence}},

	// The evidence changes.
	{[]State{Unproven}, Proven, Always, Free, []Effect{SetResidue}},
	{[]State{Free}, Doubted, Always, Unproven, nil},
	{[]State{Free, Unproven}, Adopted, Always, Unproven, nil},
	{[]State{Released, Failed}, Adopted, Always, "", nil},

	// The node has restarted.
	{States, Reboot, Always, "", []Effect{InterruptTenant, LapseErase}},
}
