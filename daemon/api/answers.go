// SPDX-License-Identifier: Apache-2.0

// Package api defines the requests and answers on the control socket, and contains a client for the socket. The JSON names of the
// fields never change, because other programs read them.
package api

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Device describes a device on the control socket.
type Device struct {
	// ID is the device's ID in the device plugin, without a share number. ID is empty if the device cannot be identified.
	ID        string    `json:"id"`
	Resource  string    `json:"resource"`  // empty if the device is not offered
	Class     string    `json:"class"`     // one of gpu, fpga, infiniband, nvme, node and bundle
	Health    string    `json:"health"`    // "Healthy" or "Unhealthy"
	Reason    string    `json:"reason"`    // why the device is Unhealthy or not offered
	Since     time.Time `json:"since"`     // when the health or the reason last changed
	NUMANode  int       `json:"numaNode"`  // -1 if unknown
	SysPath   string    `json:"sysfsPath"` // sysfs path of the udev device, or the last known path
	Nodes     []string  `json:"nodes"`     // paths of the device nodes in a container
	Cordoned  bool      `json:"cordoned"`  // an operator withholds the device from new pods, for the reason in Reason
	Allocated *Pod      `json:"allocated"` // pod that holds the device, or null if no pod holds it or the pod is unknown

	// State is the lease state: free, allocated, preparing, in-use, released, clearing, failed or unproven.
	State    string    `json:"state"`
	Evidence *Evidence `json:"evidence,omitempty"` // why a disk is offered
	Taker    string    `json:"taker,omitempty"`    // resource that matches the device, if the device is not offered yet
	Cordon   *Cordon   `json:"cordon,omitempty"`   // the cordon, if the device is cordoned
	// Held is true if a pod holds the device, according to the kubelet. For a cordoned disk, Held stays true until metalplug has
	// recorded what the pod has left on the disk.
	Held     bool   `json:"held"`
	Holders  []Pod  `json:"holders,omitempty"` // all holders, if there are several
	Warning  string `json:"warning,omitempty"` // problem that does not make the device Unhealthy
	Hardware        // in JSON, these are fields of the device itself
	Membership
}

// Membership relates a device to bundles and claims.
type Membership struct {
	// Bundle is the ID of the bundle that contains the device. A device in a bundle is not offered separately.
	Bundle  string     `json:"bundle,omitempty"`
	Members []string   `json:"members,omitempty"` // members of a bundle, starting with the one that distances are measured from
	Claims  []ClaimRef `json:"claims,omitempty"`  // claims that hold the device
}

// Hardware contains properties that help an operator recognise a device.
type Hardware struct {
	Model   string `json:"model,omitempty"`
	Serial  string `json:"serial,omitempty"`
	WWID    string `json:"wwid,omitempty"` // worldwide name of a disk
	Size    int64  `json:"size,omitempty"` // size of a disk in bytes, if known
	PCI     string `json:"pci,omitempty"`  // address of the nearest PCI function at or above the device in sysfs
	Present bool   `json:"present"`        // whether the hardware is present
	Lost    bool   `json:"lost,omitempty"` // whether the pod lost the device, because it was unplugged or needs a reset
}

// Evidence shows why metalplug considers a disk unused.
type Evidence struct {
	Kind  string    `json:"kind"`  // "blank", "erased" or "adopted"
	Since time.Time `json:"since"` // when the disk was read or erased
}

// ReadProgress shows how much metalplugd has read of the disks that are not proven to be unused yet.
type ReadProgress struct {
	Disks   int `json:"disks"`
	Percent int `json:"percent"` // percentage of all bytes on these disks that metalplugd has read
}

// Resource describes a resource on the control socket.
type Resource struct {
	Name     string `json:"name"`     // name that pods request
	Class    string `json:"class"`    // class of the resource's devices
	Shares   int    `json:"shares"`   // how many times each device is offered
	Inject   string `json:"inject"`   // "nodes" or "cdi"
	Reset    string `json:"reset"`    // reset method between two pods
	Scrub    string `json:"scrub"`    // erase method
	When     string `json:"when"`     // "start", "release" or "both"
	Serve    string `json:"serve"`    // kubelet API, "plugin" or "dra"
	Optional bool   `json:"optional"` // whether metalplugd waits for the first device before it registers the resource
	Capacity int    `json:"capacity"` // number of devices that the kubelet counts, including shares
	Registration
	Totals
}

// ByClaim reports whether pods get the devices through claims (DRA) rather than from a device plugin.
func (r Resource) ByClaim() bool { return r.Serve == "dra" }

// Expected reports whether the resource should be registered with the kubelet.
func (r Resource) Expected() bool { return !r.ByClaim() && (!r.Optional || r.Healthy+r.Unhealthy > 0) }

// KubeletState describes a resource's registration state. The result ok reports whether the kubelet sees the resource's devices.
func (r Resource) KubeletState() (text string, ok bool) {
	switch {
	case r.ByClaim():
		return "served by DRA", true
	case r.Held != "":
		return "held back: " + r.Held, false
	case r.Connected:
		return "kubelet connected", true
	case r.Registered:
		return "registered, but the kubelet has opened no stream", false
	}
	return strings.TrimSuffix("kubelet not connected: "+r.Complaint, ": "), false
}

// Configuration lists the configuration files and the result of the last reload.
type Configuration struct {
	File     string     `json:"file"`     // absolute path of the main file, or empty; the file may be missing
	Files    []string   `json:"files"`    // configuration files in the order in which they are read, or empty
	Reloaded *time.Time `json:"reloaded"` // when the last reload ended, or null
	Problem  string     `json:"problem"`  // why the last reload was refused, or empty
	// Pending contains a sentence for each key whose new value takes effect only after a restart. A refused reload does not
	// change Pending.
	Pending []string `json:"pending,omitempty"`
}

// Status is the state of metalplugd.
type Status struct {
	Version       string           `json:"version"`           // version of metalplugd
	Started       time.Time        `json:"started"`           // when metalplugd started
	Uptime        float64          `json:"uptimeSeconds"`     // time since the start in seconds
	Preview       bool             `json:"preview,omitempty"` // whether this is a preview, without a kubelet
	Source        string           `json:"source"`            // source of the devices: "udev" or "recording:FILE"
	Ready         bool             `json:"ready"`             // whether the hardware has been inspected
	Configuration Configuration    `json:"configuration"`
	Devices       Totals           `json:"devices"`
	Reading       *ReadProgress    `json:"reading,omitempty"` // null if no disk is being read
	Events        Counts           `json:"events"`
	Resources     []Resource       `json:"resources"`
	Cordons       []CordonedDevice `json:"cordons"`             // sorted by resource and ID
	Refused       []Refusal        `json:"refused"`             // the latest containers that did not get their devices, oldest first
	Driver        Driver           `json:"driver,omitzero"`     // last report of metalplug-dra since metalplugd started
	Unwritten     []string         `json:"unwritten,omitempty"` // files that metalplugd cannot write, with the reasons
}

// Totals contains the number of devices in each state. A device with several shares counts once.
type Totals struct {
	Healthy   int `json:"healthy"`
	Unhealthy int `json:"unhealthy"` // gone, faulty or cordoned
	Cordoned  int `json:"cordoned"`  // cordoned devices, which are included in Unhealthy
	Allocated int `json:"allocated"` // devices that pods hold, according to the kubelet
	// NotOffered counts devices that are present but not offered. For a resource, NotOffered counts only devices that match the
	// resource.
	NotOffered int `json:"notOffered"`
}

// Counts contains the number of events and enumerations since metalplugd started.
type Counts struct {
	Events    uint64    `json:"received"`      // number of events from udevd
	Overflows uint64    `json:"overflows"`     // number of times that events were lost
	Resyncs   uint64    `json:"resyncs"`       // enumerations after the first one, caused by the audit, an overflow or new rules
	LastEvent time.Time `json:"last,omitzero"` // when the last event arrived, or zero
}

// Refusal records that metalplugd refused a call of the kubelet for a container or a claim.
type Refusal struct {
	Time     time.Time `json:"time"`     // time of the last refusal, if there were several
	Resource string    `json:"resource"` // the resource that the container requested, or the claim
	Call     string    `json:"call"`     // "Allocate", "PreStartContainer", or "prepare" or "unprepare" for a claim
	Reason   string    `json:"reason"`   // reason, as shown in the pod's status
}

// KubeletCounts shows how many devices of each resource the kubelet counts.
type KubeletCounts struct {
	Allocatable map[string]int `json:"allocatable"` // number of healthy devices, including shares
	// Foreign maps a resource to an ID that the kubelet counts but metalplug does not offer.
	Foreign map[string]string `json:"foreign,omitempty"`
}

// Event is one change that the server sends to clients of /v1/events. The server compares the newest state with the state that it
// last sent. If a device appears and disappears between these two states, there is no event. A client that has read all events
// knows the current state.
type Event struct {
	Time time.Time `json:"time"`
	// Event is one of:
	//   listening: the first event of a connection
	//   added, withdrawn, seen: a device is offered, no longer offered, or present and not offered
	//   gone, back: the hardware is absent or present again
	//   healthy, unhealthy, cordoned, uncordoned: the state for the kubelet has changed, with its reason
	//   allocated, released: a pod holds the device, or no longer holds it
	//   changed: a device has another resource, size or place
	//   warning: a problem that leaves the device usable; with an empty text, the problem is over
	//   connected, disconnected: the kubelet's stream of a resource
	//   reloaded, refused: the result of a reload; Problem says why it was refused, and the previous configuration applies
	Event    string  `json:"event"`
	Device   *Device `json:"device,omitempty"`
	Resource string  `json:"resource,omitempty"`
	Problem  string  `json:"problem,omitempty"`
}

// Pod names a container that holds a device, and the container's pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"pod"`
	Container string `json:"container"`
}

// Registration is the registration state of a resource.
type Registration struct {
	Registered bool `json:"registered"` // whether the kubelet accepted the last registration
	Connected  bool `json:"connected"`  // whether the kubelet's ListAndWatch stream is open
	// Complaint says why the resource is not registered, in the same words as the log, or is empty.
	Complaint string `json:"complaint,omitempty"`
	Held      string `json:"heldBack,omitempty"` // why the resource is held back, or empty
}

// Cordon contains the reason, the user and the time of a cordon.
type Cordon struct {
	Reason string    `json:"reason"`
	UID    uint32    `json:"uid"`            // uid of the client as reported by the kernel
	User   string    `json:"user"`           // user name of that uid, or empty
	Login  string    `json:"login"`          // login name that the client sent, or empty
	Since  time.Time `json:"since,omitzero"` // zero if the saved state was lost
}

// Unexplained is the reason for a cordon if the operator gave none.
const Unexplained = "by the operator"

// By returns the name of the user who cordoned the device, or "" if the name is unknown. If the user ran sudo, By returns both
// names, such as "alice as root".
func (c *Cordon) By() string {
	if c.Since.IsZero() {
		return ""
	}
	name := cmp.Or(c.User, fmt.Sprintf("uid %d", c.UID))
	if c.Login != "" && c.Login != name {
		return c.Login + " as " + name
	}
	return name
}

// Same reports whether two cordons have the same content. Either cordon may be nil.
func (c *Cordon) Same(other *Cordon) bool {
	if c == nil || other == nil {
		return c == other
	}
	a, b := *c, *other
	a.Since, b.Since = time.Time{}, time.Time{}
	return a == b && c.Since.Equal(other.Since)
}

// CordonedDevice describes a cordoned device.
type CordonedDevice struct {
	Device   string `json:"device"`
	Resource string `json:"resource"` // empty if the device is not offered
	Cordon
}

// Answer explains why a device is or is not offered. Answer lists the steps in the order in which metalplugd decides. The first
// steps are about udev, the classes, the identity, the rules, use by the host, health and nodes. The next steps show facts that
// only the inventory knows, such as a cordon or a fault. The last step is about the kubelet.
type Answer struct {
	What string `json:"what"` // the name that was requested
	// Found contains an entry for each device with the requested name. Found is never empty.
	Found []Explanation `json:"found"`
}

// Explanation contains all decisions about one device, in the order that [Answer] describes.
type Explanation struct {
	SysPath string  `json:"sysfsPath"`
	Device  *Device `json:"device"` // current state of the device, or null if unknown
	Steps   []Step  `json:"steps"`
	Verdict string  `json:"verdict"`
	// Would suggests a [[resource]] in TOML if the configuration has no rule for the device.
	Would string `json:"would,omitempty"`
}

// Step is one decision about a device.
type Step struct {
	// The kind of decision is "node", "udev", "class", "identity", "rule", "offer", "health", "nodes", "state", "evidence" or
	// "kubelet".
	What string `json:"what"`
	Name string `json:"name"` // name of the class or resource
	OK   bool   `json:"ok"`   // false if the step withholds the device from pods
	Why  string `json:"why"`

	Where string `json:"where,omitempty"` // file and line of the setting that caused the decision, as "FILE:LINE"
}

// TimeFormat is the format for times that operators see. Times are in UTC.
const TimeFormat = "2006-01-02 15:04:05Z"

// Topology shows where a node's devices are in the PCI tree.
type Topology struct {
	Devices []Place `json:"devices"` // sorted by PCI address, followed by devices that are not on PCI
	// Distances contains the distance between any two GPUs or HCAs. The keys are the two devices' names.
	Distances map[string]map[string]Distance `json:"distances"`
}

// Place shows where a device is in the PCI tree.
type Place struct {
	// Name is a short name, such as GPU0 or HCA1. Each PCI function has one name. Name is empty if no resource matches the
	// device, or if the device is not on PCI.
	Name string   `json:"name"`
	Path []string `json:"path"` // path from the PCI host bridge down to the function, or empty if the device is not on PCI
	Link string   `json:"link"` // speed and width of the link if sysfs shows them, or a note that the function does not answer
	CPUs string   `json:"cpus"` // CPUs near the device, such as "0-15,32-47", if sysfs shows them
	Device
}

// Distance is the distance between two PCI functions, in the terms of "nvidia-smi topo -m".
type Distance string

// These distances, nearest first, say which component is between two functions.
const (
	PIX  Distance = "PIX"  // at most one switch in between
	PXB  Distance = "PXB"  // several switches in between, but no host bridge
	PHB  Distance = "PHB"  // a host bridge in between
	NODE Distance = "NODE" // the interconnect between host bridges of one NUMA node
	SYS  Distance = "SYS"  // the interconnect between NUMA nodes
)
