// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/api"
)

// Standin simulates a kubelet on a machine without a cluster. Plugins can register with it. It gives their devices to simulated
// pods, and reports these pods. Each pod has one container, which never starts. The methods of Standin are safe for concurrent
// use.
type Standin struct {
	pluginapi.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer
	ctx context.Context // context of all streams
	dir string          // directory that contains the plugins' sockets

	mu      sync.Mutex
	plugins map[string]*registered // keys are resource names
	pods    []*podresources.PodResources
}

// registered is a resource that a plugin has registered.
type registered struct {
	client  pluginapi.DevicePluginClient
	prefers bool                // whether the plugin supports GetPreferredAllocation
	devices []*pluginapi.Device // last list from the plugin, or nil before the first list
}

// StandIn simulates a kubelet until ctx ends. The parameter plugins is the directory where it serves kubelet.sock. The parameter
// pods is the path of the socket where it serves the PodResources service.
func StandIn(ctx context.Context, plugins, pods string) (*Standin, error) {
	s := &Standin{ctx: ctx, dir: plugins, plugins: make(map[string]*registered)}
	for path, register := range map[string]func(*grpc.Server){
		filepath.Join(plugins, "kubelet.sock"): func(server *grpc.Server) { pluginapi.RegisterRegistrationServer(server, s) },
		pods:                                   func(server *grpc.Server) { podresources.RegisterPodResourcesListerServer(server, s) },
	} {
		l, err := net.Listen("unix", path)
		if err != nil {
			return nil, fmt.Errorf("simulate the kubelet: %w", err)
		}
		server := grpc.NewServer()
		register(server)
		go server.Serve(l) // Serve returns when the server is stopped
		context.AfterFunc(ctx, server.Stop)
	}
	return s, nil
}

// Register registers a plugin. It requests the plugin's options before it returns, as the kubelet does.
func (s *Standin) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	conn, err := grpc.NewClient("unix:"+filepath.Join(s.dir, r.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	p := &registered{client: pluginapi.NewDevicePluginClient(conn)}
	options, err := p.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		conn.Close()
		return nil, err
	}
	p.prefers = options.GetGetPreferredAllocationAvailable()
	s.mu.Lock()
	s.plugins[r.GetResourceName()] = p
	s.mu.Unlock()
	go func() {
		defer conn.Close()
		stream, err := p.client.ListAndWatch(s.ctx, &pluginapi.Empty{})
		for err == nil {
			var list *pluginapi.ListAndWatchResponse
			if list, err = stream.Recv(); err == nil {
				s.mu.Lock()
				p.devices = append([]*pluginapi.Device{}, list.GetDevices()...)
				s.mu.Unlock()
			}
		}
	}()
	return &pluginapi.Empty{}, nil
}

// Knows reports whether the plugin of a resource has sent a list.
func (s *Standin) Knows(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plugins[resource] != nil && s.plugins[resource].devices != nil
}

// healthy returns the IDs of the healthy devices that are not in taken.
func (p *registered) healthy(taken []string) (ids []string) {
	for _, d := range p.devices {
		if d.GetHealth() == pluginapi.Healthy && !slices.Contains(taken, d.GetID()) {
			ids = append(ids, d.GetID())
		}
	}
	return ids
}

// errTooFew means that a pod requests more devices than are free and healthy.
var errTooFew = errors.New("too few healthy devices are free")

// Give gives n devices of a resource to the container of a new pod. It first asks the plugin which devices the plugin prefers,
// and then calls Allocate. The kubelet does the same when it admits a pod.
func (s *Standin) Give(ctx context.Context, resource string, n int) (api.Granted, error) {
	s.mu.Lock()
	p := s.plugins[resource]
	var free []string
	if p != nil {
		free = p.healthy(s.given(resource))
	}
	s.mu.Unlock()
	if len(free) < n {
		return api.Granted{}, fmt.Errorf("%w (%d)", errTooFew, len(free))
	}
	ids := free[:n]
	if p.prefers {
		answer, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: free, AllocationSize: int32(n)}},
		})
		if err != nil {
			return api.Granted{}, Readable(err, podResourcesLimit)
		}
		ids = answer.GetContainerResponses()[0].GetDeviceIDs()
	}
	answer, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return api.Granted{}, Readable(err, podResourcesLimit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = append(s.pods, &podresources.PodResources{
		Namespace: "default", Name: fmt.Sprintf("pod-%d", len(s.pods)+1),
		Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}},
		}},
	})
	return Granted(ids, answer.GetContainerResponses()[0]), nil
}

// Granted returns what a container gets for the devices with the given IDs, according to a plugin's answer.
func Granted(ids []string, answer *pluginapi.ContainerAllocateResponse) api.Granted {
	g := api.Granted{Devices: ids, Env: answer.GetEnvs(), Nodes: []api.GrantedNode{}}
	for _, d := range answer.GetDevices() {
		g.Nodes = append(g.Nodes, api.GrantedNode{Container: d.GetContainerPath(), Host: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	for _, d := range answer.GetCdiDevices() {
		g.CDI = append(g.CDI, d.GetName())
	}
	return g
}

// given returns the IDs of a resource's devices that pods hold. The caller must hold s.mu.
func (s *Standin) given(resource string) (ids []string) {
	for _, pod := range s.pods {
		for _, d := range pod.GetContainers()[0].GetDevices() {
			if d.GetResourceName() == resource {
				ids = append(ids, d.GetDeviceIds()...)
			}
		}
	}
	return ids
}

// Pods maps the ID of each device to the pods that hold the device.
func (s *Standin) Pods() map[string][]api.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return podsOf(&podresources.ListPodResourcesResponse{PodResources: s.pods})
}

// List implements the List method of the PodResources service.
func (s *Standin) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &podresources.ListPodResourcesResponse{PodResources: slices.Clone(s.pods)}, nil
}

// GetAllocatableResources lists the healthy devices of all plugins.
func (s *Standin) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := new(podresources.AllocatableResourcesResponse)
	for resource, p := range s.plugins {
		answer.Devices = append(answer.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: p.healthy(nil)})
	}
	return answer, nil
}
