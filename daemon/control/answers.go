// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"path"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inspect"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/verdict"
	"github.com/metalplug/metalplug/udev"
)

// Device is a device as it is shown. The names of its fields are fixed, for other programs read them.
type Device struct {
	// ID is the device plugin's ID of the device, without the number of a share. It is empty if it could not be identified.
	ID        string       `json:"id"`
	Resource  string       `json:"resource"`  // empty if it is seen and not offered
	Class     string       `json:"class"`     // as in the configuration: gpu, fpga, infiniband, nvme, node or bundle
	Health    string       `json:"health"`    // "Healthy" or "Unhealthy"
	Reason    string       `json:"reason"`    // why it is Unhealthy or not offered
	Since     time.Time    `json:"since"`     // when health or reason last changed
	NUMANode  int          `json:"numaNode"`  // -1 if none is known
	SysPath   string       `json:"sysfsPath"` // of the udev device that stands for it, or where it was last
	Nodes     []string     `json:"nodes"`     // as a container finds them, or would
	Cordoned  bool         `json:"cordoned"`  // an operator keeps it from new pods, for the reason that reason tells
	Allocated *kubelet.Pod `json:"allocated"` // null if no pod holds it, or which one is not known

	State    string            `json:"state"`              // of its lease: free, allocated, preparing, in-use, released, clearing, failed or unproven
	Evidence *Evidence         `json:"evidence,omitempty"` // why a disk is offered
	Taker    string            `json:"taker,omitempty"`    // the resource that takes a device which is not offered yet
	Cordon   *inventory.Cordon `json:"cordon,omitempty"`   // by whom, where it is cordoned
	Held     bool              `json:"held"`               // a pod holds it, as far as is known
	Holders  []kubelet.Pod     `json:"holders,omitempty"`  // all of them, where there are several
	Warning  string            `json:"warning,omitempty"`  // what is not as it should be though it can be used
	Hardware                   // its fields are the device's
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
	PCI     string `json:"pci,omitempty"`  // address of the PCI function that it is, or is below
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
	Optional bool   `json:"optional"` // registered only once it has a device
	Capacity int    `json:"capacity"` // as the kubelet counts, which is each share
	plugin.Status
	Totals
}

// KubeletState describes how a resource stands with the kubelet. ok reports whether the kubelet sees its devices.
func (r Resource) KubeletState() (text string, ok bool) {
	switch {
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
	Version       string        `json:"version"`       // of the program
	Started       time.Time     `json:"started"`       // when it was started
	Uptime        float64       `json:"uptimeSeconds"` // since then
	Source        string        `json:"source"`        // of the devices: "udev" or "recording:FILE"
	Ready         bool          `json:"ready"`         // the hardware has been looked at
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

// EventCounts are what came of the hardware since the start.
type EventCounts struct {
	inspect.Counts
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

// NewDevice returns a device of a snapshot as the control socket shows it. holders are the pods that hold devices, by ID.
func NewDevice(s *inventory.Status, holders map[string][]kubelet.Pod) Device {
	d := Device{
		ID: s.Device.ID, Resource: s.Resource, Class: className(s), Health: health(s.Healthy), Reason: s.Reason,
		Since: s.Since.UTC(), NUMANode: s.Device.NUMANode, SysPath: s.Device.SysPath, Nodes: []string{},
		Cordoned: s.Cordon != nil, Cordon: s.Cordon, Held: s.Held(), Warning: s.Warning, State: string(s.State),
		Hardware: Hardware{Model: s.Device.Model, Serial: serialOf(s.Target), Size: s.Evidence.Size, Present: s.Present},
	}
	if d.Resource == "" {
		d.Taker = s.Taker
	}
	if v := s.Evidence; v.Kind != "" && v.Scrub == "" {
		d.Evidence = &Evidence{v.Kind, v.Since.UTC()}
	}
	if function := device.FunctionIn(s.Device.SysPath); function != "" {
		d.PCI = path.Base(function)
	}
	d.Bundle = s.Bundle
	for _, m := range s.Members {
		d.Members = append(d.Members, m.Device.ID)
	}
	for _, n := range s.Nodes {
		d.Nodes = append(d.Nodes, n.Container)
	}
	if by := holders[s.Name()]; s.Held() && len(by) > 0 {
		d.Allocated = &by[0]
		if len(by) > 1 {
			d.Holders = by
		}
	}
	return d
}

// serialOf returns the serial number of a disk, or the name that it gives itself, or empty.
func serialOf(t *device.Target) string {
	names := t.Attributes()
	return strings.TrimSpace(cmp.Or(names["device/serial"], names["wwid"], names["device/wwid"]))
}

// reading returns how far disks have been read, or nil if none is being read.
func reading(snapshot *inventory.Snapshot) *Reading {
	var r Reading
	var read, size int64
	for d := range snapshot.All() {
		if d.Todo == verdict.ReadDisk {
			r.Disks++
			read, size = read+d.Evidence.Read, size+d.Evidence.Size
		}
	}
	if r.Disks == 0 {
		return nil
	}
	if size > 0 {
		r.Percent = int(float64(read) / float64(size) * 100)
	}
	return &r
}

// className is the name of the class of a device; empty where none is known, for one that only the kubelet remembers.
func className(s *inventory.Status) string {
	if s.Device.Class == nil {
		return ""
	}
	return s.Device.Class.Name
}

// health is a device's health in the kubelet's words (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, constants.go).
func health(healthy bool) string {
	if healthy {
		return "Healthy"
	}
	return "Unhealthy"
}

// resources returns the configured resources with their devices counted.
func (s *Server) resources(snapshot *inventory.Snapshot) []Resource {
	standing, all := s.Standing(), []Resource{}
	for _, r := range s.Config.Load().Resources {
		shown := Resource{
			Name: r.Name, Class: r.Class.Name, Shares: r.Shares, Inject: r.Inject, Optional: r.Optional,
			Reset: r.Reset.Method, Scrub: r.Reset.Scrub, When: r.Reset.When, Status: standing[r.Name],
		}
		shown.add(snapshot.Offer(r.Name))
		for _, d := range snapshot.Others {
			if d.Taker == r.Name {
				shown.NotOffered++
			}
		}
		shown.Capacity = (shown.Healthy + shown.Unhealthy) * max(1, r.Shares)
		all = append(all, shown)
	}
	return all
}

// Status returns the daemon as a whole.
func (s *Server) Status() Status {
	snapshot, _ := s.Inventory.Snapshot()
	dropped, c := udev.Dropped{}, s.Config.Load()
	if source, ok := s.Source.(*udev.System); ok { // a recording loses nothing
		dropped = source.Dropped()
	}
	all := Status{
		Version: s.Version, Started: s.Started.UTC(), Uptime: time.Since(s.Started).Seconds(), Source: c.Hardware.Source(),
		Ready: snapshot.Version > 0, Configuration: s.configuration(), DevicePlugins: c.Paths.DevicePlugins,
		Resources: s.resources(snapshot), Cordons: []Cordoned{}, Unwritten: s.Unwritten(), Reading: reading(snapshot),
		Events: EventCounts{
			Counts: s.Inventory.Counts(), Foreign: dropped.Foreign, Malformed: dropped.Malformed, Overwritten: dropped.Overwritten,
		},
	}
	for d := range snapshot.All() {
		if d.Cordon != nil {
			all.Cordons = append(all.Cordons, Cordoned{Device: d.Device.ID, Resource: d.Resource, Cordon: *d.Cordon})
		}
	}
	s.mu.Lock()
	all.Refused = append([]Refusal{}, s.refusals...)
	s.mu.Unlock()
	for _, offer := range snapshot.Offers { // also those of resources that are configured no more, while pods may hold them
		all.Devices.add(offer)
	}
	all.Devices.NotOffered = len(snapshot.Others)
	return all
}

// add counts the devices of an offer.
func (t *Totals) add(o *inventory.Offer) {
	for _, d := range o.Devices {
		switch {
		case d.Healthy:
			t.Healthy++
		case d.Cordon != nil:
			t.Cordoned++
			fallthrough
		default:
			t.Unhealthy++
		}
		if d.Held() {
			t.Allocated++
		}
	}
}
