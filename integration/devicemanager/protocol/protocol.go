// SPDX-License-Identifier: Apache-2.0

// Package protocol defines the messages between a test and a simulated kubelet. A message is one JSON object on one
// line. The simulated kubelet reads requests from its stdin, and writes replies and events to its stdout. A reply
// carries the ID of its request, and requests may overlap. It ends when its stdin ends.
package protocol

import "time"

// Options describes the node of a simulated kubelet.
type Options struct {
	DevicePlugins  string        `json:"devicePlugins"`            // directory of kubelet.sock and the checkpoint
	Socket         string        `json:"socket,omitempty"`         // name of the socket in that directory; the default is kubelet.sock
	PodResources   string        `json:"podResources"`             // socket of the PodResources API, or empty for none
	TopologyPolicy string        `json:"topologyPolicy,omitempty"` // topologyPolicy of the kubelet's configuration; empty means "none"
	NUMANodes      int           `json:"numaNodes,omitempty"`      // nodes 0..n-1, or one node if zero
	Pods           []Pod         `json:"pods,omitempty"`           // pods of the first batch, with their state in the runtime
	FirstBatch     time.Duration `json:"firstBatch,omitempty"`     // time from kubelet.sock to the first batch of pods, or negative for OpBatch
	Verbosity      int           `json:"verbosity,omitempty"`      // klog -v
	Watch          bool          `json:"watch,omitempty"`          // send an event each time the capacity changes
}

// Pod has the parts of a pod that the device manager uses.
type Pod struct {
	UID        string      `json:"uid"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Init       []Container `json:"init,omitempty"`
	Containers []Container `json:"containers"`
}

// Container is a container of a pod, with its state in the container runtime.
type Container struct {
	Name        string           `json:"name"`
	Limits      map[string]int64 `json:"limits,omitempty"`
	Restartable bool             `json:"restartable,omitempty"` // an init container with restartPolicy Always
	State       State            `json:"state,omitempty"`
}

// State is the state of a container in the runtime when the kubelet starts.
type State string

// The states that a runtime reports. A container in a crash loop is Exited, and so is a finished init container.
const (
	Absent  State = ""
	Running State = "running"
	Exited  State = "exited"
)

// Op names a request.
type Op string

// The requests.
const (
	OpCapacity Op = "capacity" // returns Reply.Resources
	OpDevices  Op = "devices"  // returns all devices in Reply.Devices, healthy or not
	OpAdmit    Op = "admit"    // admits Request.Pod; Reply.Rejected has the reason if it was rejected
	OpRemove   Op = "remove"   // removes the pod Request.UID
	OpRun      Op = "run"      // starts the container Request.Container of Request.UID, which calls PreStartContainer
	OpAssigned Op = "assigned" // returns the devices of Request.Container of Request.UID in Reply.Devices
	OpStatus   Op = "status"   // returns the devices of Request.UID in Reply.Devices, with the health in the pod's status
	OpWait     Op = "wait"     // waits until Request.Resource reads Request.Want or Request.Timeout has passed
	OpBatch    Op = "batch"    // admits the first batch now
	OpAge      Op = "age"      // moves the end of the plugin of Request.Resource into the past, by Request.By
	OpStop     Op = "stop"     // stops the manager correctly and exits
)

// Request is a request to the simulated kubelet.
type Request struct {
	ID        int           `json:"id"`
	Op        Op            `json:"op"`
	Pod       *Pod          `json:"pod,omitempty"`
	UID       string        `json:"uid,omitempty"`
	Container string        `json:"container,omitempty"`
	Resource  string        `json:"resource,omitempty"`
	Want      *Counts       `json:"want,omitempty"`
	Timeout   time.Duration `json:"timeout,omitempty"`
	By        time.Duration `json:"by,omitempty"`
}

// Reply answers the request with the same ID. With ID 0 it is an event.
type Reply struct {
	ID        int               `json:"id,omitempty"`
	Event     Event             `json:"event,omitempty"`
	Time      time.Time         `json:"time"`
	SinceSock time.Duration     `json:"sinceSock"` // time since kubelet.sock accepted connections
	Error     string            `json:"error,omitempty"`
	Rejected  *Rejection        `json:"rejected,omitempty"`
	UID       string            `json:"uid,omitempty"`
	Resources map[string]Counts `json:"resources,omitempty"`
	Devices   []Device          `json:"devices,omitempty"`
	Run       *RunOptions       `json:"run,omitempty"`
}

// Event is the name of a Reply without a request.
type Event string

// The events.
const (
	EventListening Event = "listening" // kubelet.sock accepts connections
	EventAdmitted  Event = "admitted"  // Reply.UID of the first batch was admitted, or Reply.Rejected
	EventReady     Event = "ready"     // the first batch is done and sources are ready
	EventCapacity  Event = "capacity"  // Reply.Resources changed, only with Options.Watch
)

// Rejection is the reason why a pod is not admitted. Its status becomes Failed with this reason and message.
type Rejection struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Error makes a rejection an error.
func (r *Rejection) Error() string { return r.Reason + ": " + r.Message }

// Counts are the counts of a resource in the node's status.
type Counts struct {
	Capacity    int64 `json:"capacity"`
	Allocatable int64 `json:"allocatable"`
}

// Device is a device as the device manager knows it.
type Device struct {
	Resource string  `json:"resource"`
	ID       string  `json:"id"`
	Health   string  `json:"health,omitempty"`
	NUMA     []int64 `json:"numa,omitempty"`
}

// RunOptions has everything that the device manager adds to a container.
type RunOptions struct {
	Env         map[string]string `json:"env,omitempty"`
	Nodes       []Node            `json:"nodes,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	CDI         []string          `json:"cdi,omitempty"`
}

// Node is a device node given to a container.
type Node struct {
	Host        string `json:"host"`
	Container   string `json:"container"`
	Permissions string `json:"permissions"`
}

// Mount is a host path given to a container.
type Mount struct {
	Host      string `json:"host"`
	Container string `json:"container"`
	ReadOnly  bool   `json:"readOnly"`
}
