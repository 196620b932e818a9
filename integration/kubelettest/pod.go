// SPDX-License-Identifier: Apache-2.0

package kubelettest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Container has the things that a container gets.
type Container struct {
	Devices  []string // IDs
	Response *pluginapi.ContainerAllocateResponse
}

// errTooFew is the reason why a pod is not admitted.
var errTooFew = errors.New("too few healthy devices are free")

// Allocate gives n devices of a resource to a container, as at the admission of its pod. It calls GetPreferredAllocation,
// then Allocate.
func (k *Kubelet) Allocate(ctx context.Context, name string, n int) (Container, error) {
	k.mu.Lock()
	r := k.resources[name]
	if r == nil || !r.connected {
		k.mu.Unlock()
		return Container{}, fmt.Errorf("allocate %d of %s: no plugin is registered for it", n, name)
	}
	free := slices.DeleteFunc(healthy(r.devices), func(id string) bool { return k.allocated[name][id] != "" })
	k.mu.Unlock()
	if n < 1 || len(free) < n {
		return Container{}, fmt.Errorf("allocate %d of %s: %w (%d)", n, name, errTooFew, len(free))
	}
	ids, err := r.choose(ctx, free, n)
	if err != nil {
		return Container{}, fmt.Errorf("allocate %d of %s: %w", n, name, err)
	}
	c, err := r.allocate(ctx, ids)
	if err != nil {
		return Container{}, fmt.Errorf("allocate %d of %s: %w", n, name, err)
	}
	pod := rand.Text()
	answer, err := proto.Marshal(c.Response)
	k.update(func() {
		give(k.allocated, name, ids, pod)
		k.answers[pod] = answer
	})
	if err != nil {
		return Container{}, err
	}
	return c, nil
}

// choose asks the plugin for its preferred devices, like the kubelet. It does not ask if there is no choice.
func (r *resource) choose(ctx context.Context, free []string, n int) ([]string, error) {
	if n == len(free) || !r.options.GetGetPreferredAllocationAvailable() {
		return free[:n], nil
	}
	answer, err := r.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: free, AllocationSize: int32(n)},
		},
	})
	if err != nil {
		return nil, err
	}
	var chosen []string
	if len(answer.GetContainerResponses()) == 1 {
		chosen = answer.GetContainerResponses()[0].GetDeviceIDs()
	}
	for _, id := range free { // the plugin chose too few
		if len(chosen) < n && !slices.Contains(chosen, id) {
			chosen = append(chosen, id)
		}
	}
	return chosen[:n], nil
}

func (r *resource) allocate(ctx context.Context, ids []string) (Container, error) {
	answer, err := r.client.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return Container{}, err
	}
	if len(answer.GetContainerResponses()) != 1 {
		return Container{}, fmt.Errorf("%d answers for one container", len(answer.GetContainerResponses()))
	}
	return Container{Devices: ids, Response: answer.GetContainerResponses()[0]}, nil
}

// PreStart calls PreStartContainer, as the kubelet does before every start and restart of a container.
func (k *Kubelet) PreStart(ctx context.Context, name string, c Container) error {
	k.mu.Lock()
	r := k.resources[name]
	k.mu.Unlock()
	if r == nil {
		return fmt.Errorf("start a container with %s: no plugin is registered for it", name)
	}
	ctx, cancel := context.WithTimeout(ctx, preStartLimit)
	defer cancel()
	_, err := r.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: c.Devices})
	return err
}

// Release takes the devices back, as after the end of a pod. The plugin is not notified.
func (k *Kubelet) Release(name string, c Container) {
	k.update(func() {
		for _, id := range c.Devices {
			delete(k.allocated[name], id)
		}
	})
}

// books implements the PodResources service for a Kubelet.
type books struct {
	podresources.UnimplementedPodResourcesListerServer
	*Kubelet
}

// ServePods serves PodResources at a socket until the kubelet stops.
func (k *Kubelet) ServePods(socket string) error {
	_ = os.Remove(socket) // an earlier kubelet may have left its socket
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("serve the pods: %w", err)
	}
	l.SetUnlinkOnClose(false)
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, books{Kubelet: k})
	go server.Serve(l) // returns when the server is stopped
	context.AfterFunc(k.ctx, server.Stop)
	return nil
}

// List implements the service with that name. It reports a separate pod for each device.
func (b books) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	answer := &podresources.ListPodResourcesResponse{}
	for name, allocated := range b.allocated {
		for id, pod := range allocated {
			answer.PodResources = append(answer.PodResources, &podresources.PodResources{Name: pod, Namespace: "default", Containers: []*podresources.ContainerResources{
				{Name: "c", Devices: []*podresources.ContainerDevices{{ResourceName: name, DeviceIds: []string{id}}}},
			}})
		}
	}
	return answer, nil
}
