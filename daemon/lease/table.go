// SPDX-License-Identifier: Apache-2.0

package lease

// Name names an event.
type Name string

// Events of a lease.
const (
	Allocate Name = "allocate" // the kubelet gave it to a pod, or to a claim
	Listed   Name = "listed"   // the kubelet names a tenant that it started without the daemon
	Prepare  Name = "prepare"  // a container of its tenant is about to start
	Start    Name = "started"  // the device is prepared, and the container starts
	Refused  Name = "refused"  // the work ended and did nothing
	Fail     Name = "failed"   // the work failed
	Gone     Name = "gone"     // the kubelet itself shows that no tenant has it
	Clear    Name = "clear"    // the worker begins to clean it up, or the operator's order
	Cleared  Name = "cleared"  // the clean-up is done
	Mended   Name = "mended"   // the operator's order is done, which is not the clean-up
	Erased   Name = "erased"   // an erasure was verified
	Replaced Name = "replaced" // another medium may be in its place, and nothing proves that it is the same
	Changed  Name = "changed"  // the content is not what a tenant of this node left, or the host uses the disk
	Proven   Name = "proven"   // evidence says that the disk is unused
	Doubted  Name = "doubted"  // the evidence has ended
	Adopted  Name = "adopted"  // the operator allows to erase the disk
	Restart  Name = "restart"  // the daemon, a helper or the power ended, and the daemon is back
	Reboot   Name = "reboot"   // the node was booted, and another disk may have its ID
	Lost     Name = "lost"     // the daemon is back without its state
)

// Condition decides between the rows of one state and event. The first row whose condition is met applies.
type Condition string

// Conditions of the table.
const (
	Always        Condition = ""
	IfDue         Condition = "a tenant waits for its first start"
	IfHeld        Condition = "a tenant has it"
	IfUsed        Condition = "it was used since it was last cleared"
	IfFailed      Condition = "the work before it failed"
	IfProven      Condition = "it can be offered"
	IfGiven       Condition = "the next tenant was given it since the work began, and waits"
	IfInterrupted Condition = "the node went down since its container was started"
)

// Effect is a change that a row makes besides that of the state.
type Effect string

// Effects on the lease itself.
const (
	SetDue          Effect = "tenant waits"
	SetStarted      Effect = "tenant started"
	ClearHold       Effect = "no tenant"
	InterruptTenant Effect = "interrupt a tenant that was started"
	SetUsed         Effect = "used by these tenants"
	ClearUsed       Effect = "not used"
	SetResidue      Effect = "content is the tenant's"
	ClearResidue    Effect = "content is no tenant's"
	SetFailure      Effect = "record the failure"
	ClearFailure    Effect = "forget the failure"
	LapseErase      Effect = "an order to erase lapses"
)

// Effects that the caller of [Lease.Apply] carries out.
const (
	Save        Effect = "save" // at once, and the worker waits for it before it answers the kubelet or erases
	EndEvidence Effect = "end the evidence"
	Inspect     Effect = "inspect the device"
)

// Row says how an event changes some states. To is empty where the state stays.
type Row struct {
	From  []State
	Event Name
	If    Condition
	To    State
	Do    []Effect
}

var anyState = States

// Table is the life of a device. Among the rows for a state and an event, the first applies whose condition is met.
var Table = []Row{
	// A tenant gets it. The kubelet decides, so no state can refuse it. The preparation refuses instead.
	{[]State{Free, Unproven, Released}, Allocate, Always, Allocated, []Effect{SetDue, Save}},
	{[]State{Preparing, InUse, Clearing, Failed}, Allocate, IfInterrupted, "", []Effect{SetDue, ClearResidue, Save}},
	{[]State{Allocated, Preparing, InUse, Clearing, Failed}, Allocate, Always, "", []Effect{SetDue, Save}},
	{[]State{Free, Unproven, Released, Allocated, InUse}, Listed, Always, InUse, []Effect{SetUsed, SetStarted, SetResidue, EndEvidence, Save}},
	{[]State{Preparing, Clearing, Failed}, Listed, IfHeld, "", nil},
	{[]State{Preparing, Clearing, Failed}, Listed, Always, "", []Effect{SetUsed, SetStarted, EndEvidence, Save}},

	// A container starts.
	{[]State{Free, Unproven, Allocated, InUse, Released, Failed}, Prepare, Always, Preparing, []Effect{Save}},
	{[]State{Preparing}, Start, IfGiven, Allocated, []Effect{SetUsed, SetResidue, ClearFailure, EndEvidence, Save}},
	{[]State{Preparing}, Start, Always, InUse, []Effect{SetUsed, SetStarted, SetResidue, ClearFailure, EndEvidence, Save}},

	// It has gone.
	{[]State{InUse}, Gone, IfInterrupted, Released, []Effect{ClearHold, ClearResidue, Inspect}},
	{[]State{Preparing, Clearing, Failed}, Gone, IfInterrupted, "", []Effect{ClearHold, ClearResidue}},
	{[]State{InUse}, Gone, Always, Released, []Effect{ClearHold, Inspect}},
	{[]State{Allocated}, Gone, IfUsed, Released, []Effect{ClearHold, Inspect}},
	{[]State{Allocated}, Gone, IfProven, Free, []Effect{ClearHold, Inspect}},
	{[]State{Allocated}, Gone, Always, Unproven, []Effect{ClearHold, Inspect}},
	{[]State{Free, Unproven, Released, Preparing, Clearing, Failed}, Gone, Always, "", []Effect{ClearHold}},

	// It is cleaned up, or the operator's order is carried out.
	{[]State{Free, Unproven, Released, Failed}, Clear, Always, Clearing, []Effect{Save}},
	{[]State{Clearing}, Cleared, IfHeld, Allocated, []Effect{ClearUsed, ClearFailure, Save, Inspect}},
	{[]State{Clearing}, Cleared, IfProven, Free, []Effect{ClearUsed, ClearFailure, Save, Inspect}},
	{[]State{Clearing}, Cleared, Always, Unproven, []Effect{ClearUsed, ClearFailure, Save, Inspect}},
	{[]State{Clearing}, Mended, IfHeld, Allocated, []Effect{ClearFailure, Inspect}},
	{[]State{Clearing}, Mended, IfUsed, Released, []Effect{ClearFailure, Inspect}},
	{[]State{Clearing}, Mended, IfProven, Free, []Effect{ClearFailure, Inspect}},
	{[]State{Clearing}, Mended, Always, Unproven, []Effect{ClearFailure, Inspect}},
	{[]State{Preparing, Clearing}, Erased, Always, "", []Effect{ClearResidue, Save}},

	// The work fails, or ends and has done nothing.
	{[]State{Preparing, Clearing}, Fail, Always, Failed, []Effect{SetFailure, Save, Inspect}},
	{[]State{Preparing, Clearing}, Refused, IfFailed, Failed, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Refused, IfDue, Allocated, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Refused, IfHeld, InUse, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Refused, IfUsed, Released, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Refused, IfProven, Free, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Refused, Always, Unproven, []Effect{Inspect}},

	// Another disk or other content is there.
	{[]State{Free}, Replaced, Always, Unproven, []Effect{ClearResidue, LapseErase, Save, Inspect}},
	{[]State{Unproven, Allocated, Preparing, InUse, Released, Clearing, Failed}, Replaced, Always, "", []Effect{ClearResidue, LapseErase, Save, Inspect}},
	{[]State{Free}, Changed, IfProven, "", []Effect{ClearResidue}},
	{[]State{Free}, Changed, Always, Unproven, []Effect{ClearResidue, LapseErase, EndEvidence, Save}},
	{[]State{Unproven, Allocated, Preparing, InUse, Released, Clearing, Failed}, Changed, Always, "", []Effect{ClearResidue, LapseErase, EndEvidence, Save}},

	// Evidence.
	{[]State{Unproven}, Proven, Always, Free, []Effect{SetResidue, Save}},
	{[]State{Free}, Doubted, Always, Unproven, nil},
	{[]State{Free, Unproven}, Adopted, Always, Unproven, []Effect{Save}},
	{[]State{Released, Failed}, Adopted, Always, "", []Effect{Save}},

	// The daemon is back. The kubelet may have given the device to another tenant, and the daemon ended before it could note that.
	{[]State{Preparing, Clearing}, Restart, IfFailed, Failed, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Restart, IfDue, Allocated, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Restart, IfHeld, InUse, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Restart, IfUsed, Released, []Effect{Inspect}},
	{[]State{Preparing, Clearing}, Restart, Always, Unproven, []Effect{Inspect}},
	{[]State{Free, Unproven, Allocated, InUse, Released, Failed}, Restart, Always, "", nil},
	{anyState, Reboot, Always, "", []Effect{InterruptTenant, LapseErase, Save}},
	{anyState, Lost, Always, Unproven, []Effect{ClearHold, ClearUsed, ClearResidue, ClearFailure, EndEvidence}},
}
