// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// Capacity returns the capacities that the node's status would show now.
func (n *Node) Capacity() map[string]protocol.Counts {
	capacity, allocatable, _ := n.manager.GetCapacity()
	out := map[string]protocol.Counts{}
	for name, q := range capacity {
		free := allocatable[name]
		out[string(name)] = protocol.Counts{Capacity: q.Value(), Allocatable: free.Value()}
	}
	return out
}

// Wait waits until a resource has the given counts, and returns the time since when, with a resolution of 1 ms. It
// polls, because the device manager sends no notifications.
func (n *Node) Wait(resource string, want protocol.Counts, timeout time.Duration) (time.Time, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); ; {
		got := n.Capacity()[resource]
		now := time.Now()
		if got == want {
			return now, nil
		}
		if now.Sub(begin) > timeout {
			return now, fmt.Errorf("%+v instead of %+v after %v", got, want, timeout)
		}
		<-tick.C
	}
}

// Devices returns all devices of the last ListAndWatch message of each resource. The device manager keeps them private.
// It only exports counts, and the IDs of healthy devices.
func (n *Node) Devices() []protocol.Device {
	fields := reflect.ValueOf(n.manager).Elem()
	mu := (*sync.Mutex)(fields.FieldByName("mutex").Addr().UnsafePointer())
	all := (*devicemanager.ResourceDeviceInstances)(fields.FieldByName("allDevices").Addr().UnsafePointer())
	mu.Lock()
	defer mu.Unlock()
	return flatten(*all)
}

// Assigned returns the devices of a container.
func (n *Node) Assigned(uid, container string) []protocol.Device {
	return flatten(n.manager.GetDevices(uid, container))
}

func flatten(all devicemanager.ResourceDeviceInstances) []protocol.Device {
	out := []protocol.Device{}
	for name, devices := range all {
		for id, d := range devices {
			out = append(out, protocol.Device{Resource: name, ID: id, Health: d.GetHealth(), NUMA: numaOf(d.GetTopology())})
		}
	}
	slices.SortFunc(out, func(a, b protocol.Device) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
	})
	return out
}

func numaOf(t *pluginapi.TopologyInfo) []int64 {
	var nodes []int64
	for _, node := range t.GetNodes() {
		nodes = append(nodes, node.GetID())
	}
	return nodes
}

// Status returns the health of a pod's devices as its status shows it.
func (n *Node) Status(uid string) ([]protocol.Device, error) {
	pod, err := n.pods.find(uid)
	if err != nil {
		return nil, err
	}
	var status v1.PodStatus
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{Name: c.Name})
	}
	n.manager.UpdateAllocatedResourcesStatus(pod, &status)
	out := []protocol.Device{}
	for _, c := range status.ContainerStatuses {
		for _, r := range c.AllocatedResourcesStatus {
			for _, h := range r.Resources {
				out = append(out, protocol.Device{Resource: string(r.Name), ID: string(h.ResourceID), Health: string(h.Health)})
			}
		}
	}
	return out, nil
}

// Run starts a container, which calls PreStartContainer of its plugins, and returns what the container gets.
func (n *Node) Run(uid, container string) (*protocol.RunOptions, error) {
	pod, c, err := n.pods.container(uid, container)
	if err != nil {
		return nil, err
	}
	opts, err := runOptions(n.manager, pod, c)
	if err != nil {
		return nil, fmt.Errorf("start container %s: %w", container, err)
	}
	return newRunOptions(opts), nil
}

func newRunOptions(opts *devicemanager.DeviceRunContainerOptions) *protocol.RunOptions {
	out := &protocol.RunOptions{Env: map[string]string{}, Annotations: map[string]string{}}
	if opts == nil {
		return out // the device manager adds nothing
	}
	for _, e := range opts.Envs {
		out.Env[e.Name] = e.Value
	}
	for _, a := range opts.Annotations {
		out.Annotations[a.Name] = a.Value
	}
	for _, d := range opts.Devices {
		out.Nodes = append(out.Nodes, protocol.Node{Host: d.PathOnHost, Container: d.PathInContainer, Permissions: d.Permissions})
	}
	for _, m := range opts.Mounts {
		out.Mounts = append(out.Mounts, protocol.Mount{Host: m.HostPath, Container: m.ContainerPath, ReadOnly: m.ReadOnly})
	}
	for _, d := range opts.CDIDevices {
		out.CDI = append(out.CDI, d.Name)
	}
	return out
}
