// SPDX-License-Identifier: Apache-2.0

package preview

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// State is everything that is shown at one moment.
type State struct {
	Machine    string      `json:"machine"`
	Resources  []Resource  `json:"resources"`
	Devices    []Device    `json:"devices"`
	NotOffered []Device    `json:"notOffered"`
	Containers []Container `json:"containers,omitempty"`
}

// Resource is a line of what "kubectl describe node" would show.
type Resource struct {
	Name        string `json:"name"`
	Capacity    int    `json:"capacity"`
	Allocatable int    `json:"allocatable"`

	offered   int // devices in the inventory, healthy or not, each share counted
	usable    int // healthy ones among them
	connected bool
}

// Device is a device as the control socket would show it.
type Device struct {
	ID       string   `json:"id"`
	Resource string   `json:"resource"`
	Class    string   `json:"class"`
	Model    string   `json:"model,omitempty"`
	Health   string   `json:"health"`
	Reason   string   `json:"reason"`
	NUMANode int      `json:"numaNode"`
	SysPath  string   `json:"sysfsPath"`
	Nodes    []string `json:"nodes"`
}

// Container is what a container would get.
type Container struct {
	Resource string            `json:"resource"`
	Count    int               `json:"count"`
	Devices  []string          `json:"devices"`
	Env      map[string]string `json:"env"`
	Nodes    []Node            `json:"nodes"`
	CDI      []string          `json:"cdiDevices,omitempty"` // in place of nodes: names of CDI devices
	Error    string            `json:"error,omitempty"`
}

// Node is a device node in a container.
type Node struct {
	Container   string `json:"container"`
	Host        string `json:"host"`
	Permissions string `json:"permissions"`
}

// state puts together what the kubelet and the inventory know.
func (o *Options) state(k *kubelet.Kubelet, snapshot *inventory.Snapshot) State {
	s := State{Machine: o.Title, Resources: []Resource{}, Devices: []Device{}, NotOffered: []Device{}}
	for _, r := range o.Config.Resources {
		at, shares := k.Resource(r.Name), max(1, r.Shares)
		line := Resource{Name: r.Name, Capacity: at.Capacity, Allocatable: at.Allocatable, connected: at.Connected}
		for _, d := range snapshot.Offer(r.Name).Devices {
			s.Devices = append(s.Devices, newDevice(d))
			line.offered += shares
			if d.Healthy {
				line.usable += shares
			}
		}
		if !r.Optional || at.Connected || line.offered > 0 { // the kubelet has heard of it, or will at once
			s.Resources = append(s.Resources, line)
		}
	}
	for _, d := range snapshot.Others {
		s.NotOffered = append(s.NotOffered, newDevice(d))
	}
	return s
}

// caughtUp tells whether the kubelet knows what the inventory offers.
func (s State) caughtUp() bool {
	return !slices.ContainsFunc(s.Resources, func(r Resource) bool {
		return !r.connected || r.Capacity != r.offered || r.Allocatable != r.usable
	})
}

// key is the same for states that look the same.
func (s State) key() string {
	text, _ := json.Marshal(s) // nothing in it can fail
	return string(text)
}

func newDevice(d *inventory.Status) Device {
	v := Device{
		ID: d.Device.ID, Resource: d.Resource, Class: d.Device.Class.Name, Model: d.Device.Model, Health: "Unhealthy",
		Reason: d.Reason, NUMANode: d.Device.NUMANode, SysPath: d.Device.SysPath, Nodes: []string{},
	}
	if d.Healthy {
		v.Health = "Healthy"
	}
	for _, n := range d.Allocation.Nodes {
		v.Nodes = append(v.Nodes, n.Container)
	}
	return v
}

func newContainer(r Request, c kubelet.Container, err error) Container {
	v := Container{Resource: r.Resource, Count: r.Count, Devices: c.Devices}
	if err != nil {
		v.Error = err.Error()
		return v
	}
	v.Env, v.Nodes = c.Response.GetEnvs(), []Node{}
	for _, n := range c.Response.GetDevices() {
		v.Nodes = append(v.Nodes, Node{n.GetContainerPath(), n.GetHostPath(), n.GetPermissions()})
	}
	for _, d := range c.Response.GetCdiDevices() {
		v.CDI = append(v.CDI, d.GetName())
	}
	return v
}

// ParseRequest reads a request of the form RESOURCE=COUNT.
func ParseRequest(text string) (Request, error) {
	name, count, ok := strings.Cut(text, "=")
	r := Request{Resource: name, Count: 1}
	if name == "" {
		return Request{}, fmt.Errorf("%q: no resource is named", text)
	}
	if !ok {
		return r, nil
	}
	if _, err := fmt.Sscanf(count, "%d", &r.Count); err != nil || r.Count < 1 || fmt.Sprint(r.Count) != count {
		return Request{}, fmt.Errorf("%q: the number of devices is %q, not a whole number from 1", text, count)
	}
	return r, nil
}
