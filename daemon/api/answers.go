// SPDX-License-Identifier: Apache-2.0

// Package api is what the control socket takes and answers, and a client of it. Its types are the facts that a person or another
// program is shown. The names of their JSON fields are fixed.
package api

import (
	"strings"
	"time"
)

// Device is a device as it is shown. The names of its fields are fixed, for other programs read them.
type Device struct {
	// ID is the device plugin's ID of the device, without the number of a share. It is empty if it could not be identified.
	ID        string    `json:"id"`
	Resource  string    `json:"resource"`  // empty if it is seen and not offered
	Class     string    `json:"class"`     // as in the configuration: gpu, fpga, infiniband, nvme, node or bundle
	Health    string    `json:"health"`    // "Healthy" or "Unhealthy"
	Reason    string    `json:"reason"`    // why it is Unhealthy or not offered
	Since     time.Time `json:"since"`     // when health or reason last changed
	NUMANode  int       `json:"numaNode"`  // -1 if none is known
	SysPath   string    `json:"sysfsPath"` // of the udev device that stands for it, or where it was last
	Nodes     []string  `json:"nodes"`     // as a container finds them, or would
	Cordoned  bool      `json:"cordoned"`  // an operator keeps it from new pods, for the reason that reason tells
	Allocated *Pod      `json:"allocated"` // null if no pod holds it, or which one is not known

	State    string    `json:"state"`              // of its lease: free, allocated, preparing, in-use, released, clearing, failed or unproven
	Evidence *Evidence `json:"evidence,omitempty"` // why a disk is offered
	Taker    string    `json:"taker,omitempty"`    // the resource that takes a device which is not offered yet
	Cordon   *Cordon   `json:"cordon,omitempty"`   // by whom, where it is cordoned
	Held     bool      `json:"held"`               // a pod holds it, as far as is known
	Holders  []Pod     `json:"holders,omitempty"`  // all of them, where there are several
	Warning  string    `json:"warning,omitempty"`  // what is not as it should be though it can be used
	Hardware           // its fields are the device's
	Membership
}

// Membership is what a device has to do with bundles.
type Membership struct {
	Bundle  string   `json:"bundle,omitempty"`  // the ID of the bundle that it is in. It is not offered on its own
	Members []string `json:"members,omitempty"` // of a bundle, the one that the others are near to first
}

// Hardware is what people know a device by.
type Hardware struct {
	Model   string `json:"model,omitempty"`
	Serial  string `json:"serial,omitempty"`
	Size    int64  `json:"size,omitempty"` // of a disk, in bytes, as far as it was read
	PCI     string `json:"pci,omitempty"`  // address of the PCI function that it is, is below, or is reached through first
	Present bool   `json:"present"`        // it is there
}

// Evidence is why a disk counts as unused.
type Evidence struct {
	Kind  string    `json:"kind"`  // "blank", "erased" or "adopted"
	Since time.Time `json:"since"` // when that was found or done
}

// Reading is how far disks have been read that nothing is known of.
type Reading struct {
	Disks   int `json:"disks"`
	Percent int `json:"percent"` // of all their bytes
}

// Resource is a resource as it is shown.
type Resource struct {
	Name     string `json:"name"`     // as pods ask for it
	Class    string `json:"class"`    // of its devices
	Shares   int    `json:"shares"`   // how many times each device is offered
	Inject   string `json:"inject"`   // "nodes" or "cdi"
	Reset    string `json:"reset"`    // the method by which a device is reset between two pods
	Scrub    string `json:"scrub"`    // how it is erased
	When     string `json:"when"`     // "start", "release" or "both"
	Serve    string `json:"serve"`    // by which API of the kubelet: "plugin" or "dra"
	Optional bool   `json:"optional"` // registered only once it has a device
	Capacity int    `json:"capacity"` // as the kubelet counts, which is each share
	Standing
	Totals
}

// ByClaim reports whether pods get the devices by claims (DRA), and not from a device plugin.
func (r Resource) ByClaim() bool { return r.Serve == "dra" }

// Expected reports whether the resource is to be registered with the kubelet.
func (r Resource) Expected() bool {
	return !r.ByClaim() && (!r.Optional || r.Healthy+r.Unhealthy > 0)
}

// KubeletState describes how a resource stands with the kubelet. ok reports whether the kubelet sees its devices.
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

// Configuration is where the configuration is from and what became of the last reload.
type Configuration struct {
	File     string     `json:"file"`     // the main one, absolute, whether it is there or not, or empty
	Files    []string   `json:"files"`    // in the order of reading, and none for the defaults
	Reloaded *time.Time `json:"reloaded"` // when the last reload ended, or null
	Problem  string     `json:"problem"`  // why the last reload has changed nothing
	// Pending is what of the files holds from the next start only, as of the last reload that was not refused: a sentence for
	// each key.
	Pending []string `json:"pending,omitempty"`
}

// Status is the daemon as a whole.
type Status struct {
	Version       string        `json:"version"`           // of the program
	Started       time.Time     `json:"started"`           // when it was started
	Uptime        float64       `json:"uptimeSeconds"`     // since then
	Preview       bool          `json:"preview,omitempty"` // it runs for metalplugctl preview, with a stand-in for the kubelet
	Source        string        `json:"source"`            // of the devices: "udev" or "recording:FILE"
	Ready         bool          `json:"ready"`             // the hardware has been looked at
	Configuration Configuration `json:"configuration"`
	DevicePlugins string        `json:"devicePlugins,omitempty"` // the kubelet's directory, which a reload does not change
	Devices       Totals        `json:"devices"`
	Reading       *Reading      `json:"reading,omitempty"` // null if no disk is being read
	Events        EventCounts   `json:"events"`
	Resources     []Resource    `json:"resources"`
	Cordons       []Cordoned    `json:"cordons"`             // by resource and ID
	Refused       []Refusal     `json:"refused"`             // the last containers that did not get their devices, oldest first
	Unwritten     []string      `json:"unwritten,omitempty"` // which of the daemon's files cannot be written, and why
}

// Totals count devices, not shares.
type Totals struct {
	Healthy    int `json:"healthy"`
	Unhealthy  int `json:"unhealthy"`  // gone, sick or cordoned
	Cordoned   int `json:"cordoned"`   // of the unhealthy ones
	Allocated  int `json:"allocated"`  // held by a pod, as far as is known
	NotOffered int `json:"notOffered"` // seen and not offered, and of a resource those that it takes
}

// Counts are the numbers of events and enumerations since the start.
type Counts struct {
	Events    uint64    `json:"received"`      // of udevd
	Overflows uint64    `json:"overflows"`     // times that events were lost
	Resyncs   uint64    `json:"resyncs"`       // enumerations after the first, by the audit, an overflow or new rules
	LastEvent time.Time `json:"last,omitzero"` // when the last event arrived, or zero
}

// EventCounts are what came of the hardware since the start.
type EventCounts struct {
	Counts
	Foreign     uint64 `json:"foreign"`              // not from udevd
	Malformed   uint64 `json:"malformed"`            // could not be decoded
	Overwritten uint64 `json:"kernelLogOverwritten"` // times that lines of the kernel's log were lost
}

// Refusal is a container that did not get its devices.
type Refusal struct {
	Time     time.Time `json:"time"`     // of the last one, where it was repeated
	Resource string    `json:"resource"` // that the container asked for
	Call     string    `json:"call"`     // "Allocate" or "PreStartContainer"
	Reason   string    `json:"reason"`   // as the status of the pod shows it
}

// Counted is what the kubelet counts, by resource.
type Counted struct {
	Allocatable map[string]int    `json:"allocatable"`       // healthy devices, each share for itself
	Foreign     map[string]string `json:"foreign,omitempty"` // one that it counts and that is none of ours
	Unknown     string            `json:"unknown,omitempty"` // why the kubelet never says what it counts, or empty
}

// Event is something that happened, as it is sent to a client that follows. The server compares the state that the client
// was told of last with the newest one. A device that comes and goes between two looks has no event. All events are true, and
// a client that has read them all knows the state of everything.
type Event struct {
	Time time.Time `json:"time"`
	// Event is one of:
	//   listening: the first one: what happens from now on is sent
	//   added, withdrawn: a device is in an offer, or not any more; seen: it is there and not offered
	//   gone, back: its hardware
	//   healthy, unhealthy, cordoned, uncordoned: the state that the kubelet is sent, with its reason
	//   allocated, released: whether a pod holds it
	//   warning: what is not as it should be; nothing in it: that is over
	//   connected, disconnected: the kubelet, to a resource
	//   reloaded, refused: the configuration; where it was refused, Problem says why and the old one holds
	//   missed: the client took the last events so slowly that there were states which it was not sent; Problem counts them
	Event    string  `json:"event"`
	Device   *Device `json:"device,omitempty"`
	Resource string  `json:"resource,omitempty"`
	Problem  string  `json:"problem,omitempty"`
}

// Pod is a container of a pod that holds a device.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"pod"`
	Container string `json:"container"`
}

// Standing is how a resource stands with the kubelet.
type Standing struct {
	Registered bool   `json:"registered"`          // the last registration was accepted
	Connected  bool   `json:"connected"`           // the kubelet's ListAndWatch stream is open
	Complaint  string `json:"complaint,omitempty"` // why the kubelet does not know the resource, as it is logged, or empty
	Held       string `json:"heldBack,omitempty"`  // why the resource is held back, or empty
}
