// SPDX-License-Identifier: Apache-2.0

// Package api defines the requests and answers of the control socket, and a client of the socket. The JSON names of the
// fields never change, because other programs read them.
package api

import (
	"strings"
	"time"
)

// Device is a device as the control socket shows it.
type Device struct {
	// ID is the ID that the device plugin uses, without a share number. It is empty if the device cannot be identified.
	ID        string    `json:"id"`
	Resource  string    `json:"resource"`  // empty if the device is not offered
	Class     string    `json:"class"`     // one of gpu, fpga, infiniband, nvme, node and bundle
	Health    string    `json:"health"`    // "Healthy" or "Unhealthy"
	Reason    string    `json:"reason"`    // why the device is Unhealthy or not offered
	Since     time.Time `json:"since"`     // when health or reason last changed
	NUMANode  int       `json:"numaNode"`  // -1 if unknown
	SysPath   string    `json:"sysfsPath"` // sysfs path of the udev device, or the last known path
	Nodes     []string  `json:"nodes"`     // paths in a container
	Cordoned  bool      `json:"cordoned"`  // an operator withholds the device from new pods; Reason contains the operator's reason
	Allocated *Pod      `json:"allocated"` // pod that holds the device, or null if no pod holds it or the pod is unknown

	// State is the state of the lease, which is free, allocated, preparing, in-use, released, clearing, failed or
	// unproven.
	State    string    `json:"state"`
	Evidence *Evidence `json:"evidence,omitempty"` // why a disk is offered
	Taker    string    `json:"taker,omitempty"`    // resource that matches a device which is not offered yet
	Cordon   *Cordon   `json:"cordon,omitempty"`   // cordon of a cordoned device
	Held     bool      `json:"held"`               // the kubelet reports that a pod holds the device
	Holders  []Pod     `json:"holders,omitempty"`  // all holders, if there are several
	Warning  string    `json:"warning,omitempty"`  // problem that leaves the device usable
	Hardware           // in JSON, these are fields of the device itself
	Membership
}

// Membership relates a device to bundles and claims.
type Membership struct {
	// Bundle is the ID of the bundle that contains the device. Such a device is not offered on its own.
	Bundle  string     `json:"bundle,omitempty"`
	Members []string   `json:"members,omitempty"` // members of a bundle; distances are measured from the first one
	Claims  []ClaimRef `json:"claims,omitempty"`  // claims that hold the device
}

// Hardware contains the properties by which an operator recognises a device.
type Hardware struct {
	Model   string `json:"model,omitempty"`
	Serial  string `json:"serial,omitempty"`
	WWID    string `json:"wwid,omitempty"` // worldwide name of a disk
	Size    int64  `json:"size,omitempty"` // size of a disk in bytes, if known
	PCI     string `json:"pci,omitempty"`  // address of the device's PCI function, or of the first PCI function that leads to it
	Present bool   `json:"present"`        // the hardware is present
	Lost    bool   `json:"lost,omitempty"` // the pod lost the device: it was unplugged, or only a reset clears its fault
}

// Evidence is the reason why a disk is considered unused.
type Evidence struct {
	Kind  string    `json:"kind"`  // "blank", "erased" or "adopted"
	Since time.Time `json:"since"` // when the disk was read or erased
}

// Reading is the progress of reading disks that have no evidence yet.
type Reading struct {
	Disks   int `json:"disks"`
	Percent int `json:"percent"` // percentage of the bytes on all these disks that has been read
}

// Resource is a resource as the control socket shows it.
type Resource struct {
	Name     string `json:"name"`     // name that pods request
	Class    string `json:"class"`    // class of the resource's devices
	Shares   int    `json:"shares"`   // how many times each device is offered
	Inject   string `json:"inject"`   // "nodes" or "cdi"
	Reset    string `json:"reset"`    // reset method between two pods
	Scrub    string `json:"scrub"`    // erase method
	When     string `json:"when"`     // "start", "release" or "both"
	Serve    string `json:"serve"`    // kubelet API, "plugin" or "dra"
	Optional bool   `json:"optional"` // the resource is registered only after it has had a device
	Capacity int    `json:"capacity"` // number of devices that the kubelet counts, including shares
	Standing
	Totals
}

// ByClaim reports whether pods get the devices through claims (DRA), rather than from a device plugin.
func (r Resource) ByClaim() bool { return r.Serve == "dra" }

// Expected reports whether the resource must be registered with the kubelet.
func (r Resource) Expected() bool {
	return !r.ByClaim() && (!r.Optional || r.Healthy+r.Unhealthy > 0)
}

// KubeletState describes the registration state of a resource. ok reports whether the kubelet sees the devices of the
// resource.
func (r Resource) KubeletState() (text string, ok bool) {
	switch {
	case r.ByClaim():
		return `served by DRA, and not registered as a device plugin`, true
	case r.Held != "":
		return "held back: " + r.Held, false
	case r.Connected:
		return "registered, and the kubelet's stream is open", true
	case r.Registered:
		return "registered, but the kubelet has opened no stream", false
	}
	return strings.TrimSuffix("the kubelet does not know it: "+r.Complaint, ": "), false
}

// Configuration lists the configuration files and the result of the last reload.
type Configuration struct {
	File     string     `json:"file"`     // absolute path of the main file, which may be missing, or empty
	Files    []string   `json:"files"`    // configuration files in the order in which they are read; empty if there are none
	Reloaded *time.Time `json:"reloaded"` // when the last reload ended, or null
	Problem  string     `json:"problem"`  // why the last reload was refused, or empty
	// Pending contains one sentence for each key whose new value takes effect only after a restart. A refused reload does
	// not change it.
	Pending []string `json:"pending,omitempty"`
}

// Status is the state of metalplugd.
type Status struct {
	Version       string        `json:"version"`           // version of metalplugd
	Started       time.Time     `json:"started"`           // when metalplugd started
	Uptime        float64       `json:"uptimeSeconds"`     // time since the start in seconds
	Preview       bool          `json:"preview,omitempty"` // metalplugctl preview started metalplugd, with a simulated kubelet
	Source        string        `json:"source"`            // source of the devices: "udev" or "recording:FILE"
	Ready         bool          `json:"ready"`             // the hardware has been inspected
	Configuration Configuration `json:"configuration"`
	DevicePlugins string        `json:"devicePlugins,omitempty"` // the kubelet's directory, which changes only at a restart
	Devices       Totals        `json:"devices"`
	Reading       *Reading      `json:"reading,omitempty"` // null if no disk is being read
	Events        EventCounts   `json:"events"`
	Resources     []Resource    `json:"resources"`
	Cordons       []Cordoned    `json:"cordons"`             // sorted by resource and ID
	Refused       []Refusal     `json:"refused"`             // latest containers that did not get their devices, oldest first
	Unwritten     []string      `json:"unwritten,omitempty"` // files that metalplugd cannot write, with the reasons
}

// Totals count devices, not shares.
type Totals struct {
	Healthy   int `json:"healthy"`
	Unhealthy int `json:"unhealthy"` // gone, faulty or cordoned
	Cordoned  int `json:"cordoned"`  // cordoned devices, which are included in Unhealthy
	Allocated int `json:"allocated"` // devices that pods hold, according to the kubelet
	// NotOffered counts devices that are present and not offered. For a resource, it counts only devices that match.
	NotOffered int `json:"notOffered"`
}

// Counts contains the numbers of events and enumerations since the start.
type Counts struct {
	Events    uint64    `json:"received"`      // number of events from udevd
	Overflows uint64    `json:"overflows"`     // how often events were lost
	Resyncs   uint64    `json:"resyncs"`       // enumerations after the first one, caused by the audit, an overflow or new rules
	LastEvent time.Time `json:"last,omitzero"` // when the last event arrived, or zero
}

// EventCounts contains the numbers of all messages about the hardware since the start.
type EventCounts struct {
	Counts
	Foreign     uint64 `json:"foreign"`              // messages that were not from udevd
	Malformed   uint64 `json:"malformed"`            // messages that could not be decoded
	Overwritten uint64 `json:"kernelLogOverwritten"` // how often lines of the kernel log were lost
}

// Refusal records that a container did not get its devices.
type Refusal struct {
	Time     time.Time `json:"time"`     // time of the last refusal, if there were several
	Resource string    `json:"resource"` // the resource that the container requested
	Call     string    `json:"call"`     // "Allocate" or "PreStartContainer"
	Reason   string    `json:"reason"`   // text in the status of the pod
}

// Counted contains the kubelet's count of devices, by resource.
type Counted struct {
	Allocatable map[string]int `json:"allocatable"` // number of healthy devices, including shares
	// Foreign contains, by resource, an ID that the kubelet counts but metalplug does not offer.
	Foreign map[string]string `json:"foreign,omitempty"`
	Unknown string            `json:"unknown,omitempty"` // why the kubelet does not report its count, or empty
}

// Event is one change, as sent to a client of /v1/events. The server compares the state that it sent last with the newest
// state. If a device appears and disappears between these two states, there is no event. A client that has read all
// events knows the present state.
type Event struct {
	Time time.Time `json:"time"`
	// Event is one of:
	//   listening: the first event of a connection
	//   added, withdrawn, seen: a device is offered, no longer offered, or present and not offered
	//   gone, back: the hardware is absent or present again
	//   healthy, unhealthy, cordoned, uncordoned: the state for the kubelet has changed, with its reason
	//   allocated, released: a pod holds the device, or no longer holds it
	//   warning: a problem that leaves the device usable; with an empty text, the problem is over
	//   connected, disconnected: the kubelet's stream of a resource
	//   reloaded, refused: the configuration; Problem is why a reload was refused, and the previous configuration applies
	//   missed: the client was too slow; Problem has the number of states that it missed
	Event    string  `json:"event"`
	Device   *Device `json:"device,omitempty"`
	Resource string  `json:"resource,omitempty"`
	Problem  string  `json:"problem,omitempty"`
}

// Pod is a container in a pod that holds a device.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"pod"`
	Container string `json:"container"`
}

// Standing is the registration state of a resource.
type Standing struct {
	Registered bool `json:"registered"` // the kubelet accepted the last registration
	Connected  bool `json:"connected"`  // the kubelet's ListAndWatch stream is open
	// Complaint is the reason why the resource is not registered, with the same text as in the log, or empty.
	Complaint string `json:"complaint,omitempty"`
	Held      string `json:"heldBack,omitempty"` // why the resource is held back, or empty
}
