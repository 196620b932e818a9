// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// errUnknown is the error for a device ID that this resource does not have. The kubelet must have got the ID from another
// plugin's list.
var errUnknown = errors.New("not a device of this resource")

// pick returns the devices that the given shares belong to, sorted by ID and without duplicates. For each device, pick also
// returns the IDs that the kubelet used. If a device is unhealthy, pick returns an error. If the parameter "again" is true,
// mayRestart decides whether an unhealthy device causes this error.
func (s service) pick(offer *inventory.Offer, shares []string, again bool) (
	devices []*inventory.Status, names map[string][]string, err error,
) {
	if len(shares) == 0 {
		return nil, nil, fmt.Errorf("the kubelet requested no device of %s: %w", s.Resource.Name, errUnknown)
	}
	devices, names = make([]*inventory.Status, 0, len(shares)), make(map[string][]string, len(shares))
	for _, share := range shares {
		d := s.Resource.find(offer, share)
		if d == nil {
			return nil, nil, fmt.Errorf("%.80q: %w %s", share, errUnknown, s.Resource.Name)
		}
		if !d.Healthy && !(again && mayRestart(d)) {
			return nil, nil, fmt.Errorf("%s is unhealthy: %s", d.Device.ID, d.Reason)
		}
		devices = append(devices, d)
		for _, part := range d.Parts() {
			names[part.Device.ID] = append(names[part.Device.ID], share)
		}
	}
	slices.SortFunc(devices, func(a, b *inventory.Status) int { return strings.Compare(a.Device.ID, b.Device.ID) })
	return slices.Compact(devices), names, nil
}

// mayRestart reports whether a container may start with an unhealthy device. The container may start if the device has no fault
// except a cordon, and the container's pod already holds it. The container may also start if an earlier attempt failed because
// the device could not be reset.
func mayRestart(d *inventory.Status) bool {
	for _, part := range d.Parts() {
		if !part.Healthy && !(part.Parked && part.Held()) && (part.Failure == "" || part.Reason != part.Failure) {
			return false
		}
	}
	return true
}

// find returns the device that a share belongs to, or nil. find also accepts an ID from before the number of shares was changed,
// because a pod may still hold the device under this ID.
func (r *Resource) find(offer *inventory.Offer, share string) *inventory.Status {
	if id, ok := r.deviceID(share); ok {
		if d := offer.Find(id); d != nil {
			return d
		}
	}
	if d := offer.Find(checkpoint.Parent(share)); d != nil && slices.Contains(d.HeldAs, share) {
		return d
	}
	return nil
}

// checkUnreserved returns an error for a device that only its last pod may use. If the last pod has ended, the kubelet may give
// the device to a new pod, which must not see the data that the last pod left behind.
func (s service) checkUnreserved(devices []*inventory.Status) error {
	for _, d := range devices {
		if old := s.Resource.outdatedIDs(d); len(old) > 0 {
			return fmt.Errorf("%s is unhealthy: a pod still holds the device as %s, which it got before the number of shares was changed", d.Device.ID, old[0])
		}
		if s.Resource.Shares > 1 { // if the device has shares, pods with other shares may still be using it
			continue
		}
		if d.Barred != "" {
			s.Inventory.Released(ids(parts([]*inventory.Status{d})))
			if d.Barred == d.Reserved {
				return fmt.Errorf("%s is unhealthy after the last pod: %s", d.Device.ID, d.Barred)
			}
			return fmt.Errorf("%s is unhealthy: %s", d.Device.ID, d.Barred)
		}
	}
	return nil
}

// answer returns the response for a container that uses the given devices. The response contains either the devices' nodes or
// their CDI names. For bundles, the response contains all members' nodes, names and variables, and an annotation that lists each
// bundle's members.
func (s service) answer(devices []*inventory.Status) (*pluginapi.ContainerAllocateResponse, error) {
	all, err := s.byResource(devices)
	if err != nil {
		return nil, err
	}
	answer := &pluginapi.ContainerAllocateResponse{Envs: make(map[string]string), Annotations: make(map[string]string)}
	if s.Resource.Member != nil {
		answer.Envs[s.Resource.Variable] = strings.Join(ids(devices), ",")
		for _, b := range devices {
			key, value := annotation(b)
			answer.Annotations[key] = value
		}
	}
	seen := make(map[string]bool)
	for _, g := range all {
		if err := g.nodesPresent(g.devices); err != nil {
			return nil, err
		}
		names, err := g.cdiNames(g.devices)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			answer.CdiDevices = append(answer.CdiDevices, &pluginapi.CDIDevice{Name: name})
		}
		for _, d := range g.devices {
			for _, n := range d.Allocation.Nodes {
				if g.Resource.CDI == nil && !seen[n.Container] {
					seen[n.Container] = true
					permissions := cmp.Or(n.Permissions, g.Resource.Permissions)
					answer.Devices = append(answer.Devices, &pluginapi.DeviceSpec{HostPath: n.Host, ContainerPath: n.Container, Permissions: permissions})
				}
			}
		}
		for key, value := range g.env() {
			switch before := answer.Envs[key]; {
			case before == "":
				answer.Envs[key] = value
			case !slices.Contains(strings.Split(before, ","), value): // the resources of two members may set the same value
				answer.Envs[key] = before + "," + value
			}
		}
	}
	return answer, nil
}

// env returns the variables that a container gets for one resource's devices. A container with CDI names also gets these
// variables, because only the last value takes effect if several CDI devices set the same variable.
func (g memberGroup) env() map[string]string {
	env := map[string]string{g.Resource.Variable: strings.Join(ids(g.devices), ",")}
	for _, d := range g.devices {
		for key, value := range d.Allocation.Env {
			if before := env[key]; before != "" {
				value = before + "," + value
			}
			env[key] = value
		}
	}
	for key, template := range g.Resource.Env {
		env[key] = expand(template, g.devices)
	}
	return env
}

// expand returns a template's values for the given devices, joined by commas. A template without braces is returned unchanged.
func expand(template string, devices []*inventory.Status) string {
	var values []string
	for _, d := range devices {
		function, node := d.Device.Function(), ""
		if i := slices.IndexFunc(d.Allocation.Nodes, func(n device.Node) bool { return !n.Shared() }); i >= 0 {
			node = d.Allocation.Nodes[i].Container
		}
		value := strings.NewReplacer("{id}", d.Device.ID, "{pci}", function[strings.LastIndex(function, "/")+1:], "{node}", node).Replace(template)
		if value == template {
			return template
		}
		values = append(values, value)
	}
	return strings.Join(values, ",")
}

// nodesPresent returns an error if any of the devices' nodes does not exist.
func (s service) nodesPresent(devices []*inventory.Status) error {
	for _, d := range devices {
		for _, n := range d.Allocation.Nodes {
			if _, err := s.Host.Stat(n.Host); err != nil {
				return fmt.Errorf("device node %[2]s of %[1]s is %[3]w", d.Device.ID, n.Host, device.ErrGone)
			}
		}
	}
	return nil
}

// cdiNames returns the CDI names of the devices, or nil if containers get device nodes.
func (s service) cdiNames(devices []*inventory.Status) ([]string, error) {
	if s.Resource.CDI == nil {
		return nil, nil
	}
	names, err := s.Resource.CDI(devices)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be passed by CDI name: %w", strings.Join(ids(devices), ", "), err)
	}
	return names, nil
}

// Give returns the same allocation as Allocate for a container that uses the given devices from a resource. The error says why
// the container cannot have the devices.
func Give(r Resource, host *device.Host, devices []*inventory.Status) (api.Allocation, error) {
	answer, err := service{Endpoint: &Endpoint{Resource: r, Host: host}}.answer(devices)
	if err != nil {
		return api.Allocation{}, err
	}
	return convertAnswer(ids(devices), answer), nil
}

// convertAnswer converts the answer for a container.
func convertAnswer(ids []string, answer *pluginapi.ContainerAllocateResponse) api.Allocation {
	g := api.Allocation{Devices: ids, Env: answer.GetEnvs(), Nodes: []api.GrantedNode{}}
	for _, d := range answer.GetDevices() {
		g.Nodes = append(g.Nodes, api.GrantedNode{Container: d.GetContainerPath(), Host: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	for _, d := range answer.GetCdiDevices() {
		g.CDI = append(g.CDI, d.GetName())
	}
	return g
}

// Admit allocates n of the resource's devices to a new pod's container, as the kubelet does when it admits the pod. The endpoint
// need not run. The callback taken() reports whether an earlier pod holds a device or share.
func (e *Endpoint) Admit(n int, taken func(id string) bool) (api.Allocation, error) {
	snapshot, _ := e.Inventory.Snapshot()
	offer := snapshot.Offer(e.Resource.Name)
	var free []string
	for _, d := range e.Resource.list(offer) {
		if d.Health == pluginapi.Healthy && !taken(d.ID) {
			free = append(free, d.ID)
		}
	}
	if len(free) < n {
		return api.Allocation{}, fmt.Errorf("too few healthy devices are free (%d)", len(free))
	}
	chosen := e.Resource.prefer(offer, free, nil, n)
	answer, err := service{Endpoint: e}.Allocate(context.Background(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: chosen}},
	})
	if err != nil {
		return api.Allocation{}, errors.New(status.Convert(err).Message())
	}
	return convertAnswer(chosen, answer.GetContainerResponses()[0]), nil
}
