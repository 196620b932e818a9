// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

// podDevices gives the PodResources server access to the device manager, like the kubelet's container manager.
type podDevices struct{ *devicemanager.ManagerImpl }

// GetDevices returns the devices of a container.
func (p podDevices) GetDevices(uid, container string) []*api.ContainerDevices {
	return containerDevices(p.ManagerImpl.GetDevices(uid, container))
}

// GetAllocatableDevices returns the healthy devices.
func (p podDevices) GetAllocatableDevices() []*api.ContainerDevices {
	return containerDevices(p.ManagerImpl.GetAllocatableDevices())
}

// containerDevices follows containerDevicesFromResourceDeviceInstances in pkg/kubelet/cm. It returns one entry for each
// ID and NUMA node.
func containerDevices(all devicemanager.ResourceDeviceInstances) []*api.ContainerDevices {
	var out []*api.ContainerDevices
	for name, devices := range all {
		for id, d := range devices {
			if d.GetTopology() == nil {
				out = append(out, &api.ContainerDevices{ResourceName: name, DeviceIds: []string{id}})
				continue
			}
			for _, node := range d.GetTopology().GetNodes() {
				out = append(out, &api.ContainerDevices{
					ResourceName: name, DeviceIds: []string{id},
					Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: node.GetID()}}},
				})
			}
		}
	}
	return out
}

// nothing replaces the managers of CPUs, memory and claims, which do not exist here.
type nothing struct{}

func (nothing) GetCPUs(string, string) []int64                  { return nil }
func (nothing) GetAllocatableCPUs() []int64                     { return nil }
func (nothing) GetMemory(string, string) []*api.ContainerMemory { return nil }
func (nothing) GetAllocatableMemory() []*api.ContainerMemory    { return nil }
func (nothing) GetDynamicResources(*v1.Pod, *v1.Container) []*api.DynamicResource {
	return nil
}

// servePodResources serves the PodResources API on a socket with the kubelet's server and rate limit, until the process
// ends.
func servePodResources(socket string, pods *podList, m *devicemanager.ManagerImpl) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return fmt.Errorf("create directory of PodResources: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove stale PodResources socket: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for PodResources: %w", err)
	}
	server := newPodResources(podresources.PodResourcesProviders{
		Pods: pods, Devices: podDevices{m}, Cpus: nothing{}, Memory: nothing{}, DynamicResources: nothing{},
	})
	go func() { _ = server.Serve(l) }() // ends with the process, like the kubelet's server
	return nil
}
