// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// checkpointName is the file in which the device manager saves allocations (pkg/kubelet/cm/devicemanager).
const checkpointName = "kubelet_internal_checkpoint"

// assignment is an entry of the kubelet's checkpoint, the devices of a resource that a pod got.
type assignment struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           map[string][]string // keys are NUMA nodes
	AllocResp                           []byte
}

// ids returns the device IDs of the entry.
func (a assignment) ids() []string { return slices.Concat(slices.Collect(maps.Values(a.DeviceIDs))...) }

// registered is a registered device plugin.
type registered struct {
	conn      *grpc.ClientConn
	client    pluginapi.DevicePluginClient
	devices   map[string]string // health by ID, as last received
	connected bool
}

// kubelet is a device manager in a directory. It writes a checkpoint and serves PodResources. When the stream of an
// older plugin of a resource ends, it disconnects the newest one, like kubelets before 1.37. Each event that would
// crash a real kubelet is recorded as a crash. Such an event occurs when an ID leaves its list while a pod holds the
// device or is getting it.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer
	dir    string
	active func() []string // UIDs of the pods that have not ended
	server *grpc.Server
	ctx    context.Context // context of all streams
	cancel context.CancelFunc
	over   sync.WaitGroup

	mu       sync.Mutex
	plugins  map[string]*registered
	assigned []assignment
	asked    map[string]bool // IDs that are being allocated
	crash    error           // the first crash
	changed  chan struct{}   // closed and replaced at every change
	lists    int             // messages received
}

// socketOf returns the path at which the kubelet of a directory serves PodResources.
func socketOf(dir string) string { return dir + ".pods" }

// startKubelet removes all sockets from the directory, reads the checkpoint and serves.
func startKubelet(dir string, active func() []string) (*kubelet, error) {
	k := &kubelet{
		dir: dir, active: active, server: grpc.NewServer(),
		plugins: make(map[string]*registered), asked: make(map[string]bool), changed: make(chan struct{}),
	}
	if err := k.restore(); err != nil {
		return nil, err
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	pluginapi.RegisterRegistrationServer(k.server, k)
	podresources.RegisterPodResourcesListerServer(k.server, k)
	for _, name := range []string{filepath.Join(dir, "kubelet.sock"), socketOf(dir)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			return nil, err
		}
		l.SetUnlinkOnClose(false) // a killed kubelet leaves its sockets
		k.over.Go(func() { _ = k.server.Serve(l) })
	}
	return k, nil
}

// restore restores the state from the checkpoint, like the device manager before it listens.
func (k *kubelet) restore() error {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type() == os.ModeSocket && e.Name() != "kubelet.sock" {
			if err := os.Remove(filepath.Join(k.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(k.dir, checkpointName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var kept struct {
		Data struct{ PodDeviceEntries []assignment }
	}
	err = errors.Join(err, json.Unmarshal(text, &kept))
	k.assigned = kept.Data.PodDeviceEntries
	return err
}

// save writes the checkpoint. The caller holds mu.
func (k *kubelet) save() error {
	var kept struct {
		Data struct{ PodDeviceEntries []assignment }
	}
	kept.Data.PodDeviceEntries = k.assigned
	text, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	next := filepath.Join(k.dir, ".checkpoint")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(k.dir, checkpointName))
}

// stop ends the kubelet as a crash would.
func (k *kubelet) stop() {
	k.server.Stop()
	k.cancel()
	k.mu.Lock()
	for _, p := range k.plugins {
		p.conn.Close()
	}
	k.mu.Unlock()
	k.over.Wait()
}

// Register is the Registration service.
func (k *kubelet) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	conn, err := grpc.NewClient("unix:"+filepath.Join(k.dir, req.GetEndpoint()),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	p := &registered{conn: conn, client: pluginapi.NewDevicePluginClient(conn)}
	if _, err := p.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
		conn.Close()
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		conn.Close()
		return nil, k.ctx.Err()
	}
	if old := k.plugins[req.GetResourceName()]; old != nil {
		p.devices = old.devices
	}
	k.plugins[req.GetResourceName()] = p
	k.over.Go(func() { k.watch(req.GetResourceName(), p) })
	return &pluginapi.Empty{}, nil
}

// watch processes the lists of a plugin until its stream ends, which also disconnects the newest plugin of the
// resource.
func (k *kubelet) watch(name string, p *registered) {
	defer k.update(func() {
		p.connected = false
		p.conn.Close()
		if newest := k.plugins[name]; newest != p {
			newest.conn.Close()
		}
	})
	stream, err := p.client.ListAndWatch(k.ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.update(func() { k.take(name, p, list) })
		}
	}
}

// take processes a list. The caller holds mu.
func (k *kubelet) take(name string, p *registered, list *pluginapi.ListAndWatchResponse) {
	p.devices, p.connected = make(map[string]string), true
	k.lists++
	for _, d := range list.GetDevices() {
		if _, twice := p.devices[d.GetID()]; twice {
			k.recordCrash(fmt.Errorf("%s is in the list of %s twice", d.GetID(), name))
		}
		p.devices[d.GetID()] = d.GetHealth()
	}
	for _, a := range k.assigned {
		for _, id := range a.ids() {
			if _, ok := p.devices[id]; !ok && a.ResourceName == name {
				k.recordCrash(fmt.Errorf("%s left the list while %s holds it", id, a.PodUID))
			}
		}
	}
	if err := k.save(); err != nil {
		k.recordCrash(err)
	}
}

// recordCrash records the first event that would have crashed a kubelet. The caller holds mu.
func (k *kubelet) recordCrash(err error) {
	if k.crash == nil {
		k.crash = err
	}
}

func (k *kubelet) update(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	close(k.changed)
	k.changed = make(chan struct{})
}

// clean removes the allocations of pods that have ended. The caller holds mu.
func (k *kubelet) clean() {
	active := k.active()
	k.assigned = slices.DeleteFunc(k.assigned, func(a assignment) bool { return !slices.Contains(active, a.PodUID) })
}

// initOnly is the suffix of the UID of a pod in which only an init container has devices.
const initOnly = "-init"

// GetAllocatableResources returns nothing, because no other plugin registers before the daemon.
func (k *kubelet) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{}, nil
}

// List implements PodResources. It removes ended pods without writing the checkpoint, and omits init containers.
func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clean()
	answer := &podresources.ListPodResourcesResponse{}
	for _, a := range k.assigned {
		if strings.HasSuffix(a.PodUID, initOnly) {
			continue
		}
		answer.PodResources = append(answer.PodResources, &podresources.PodResources{
			Name: a.PodUID, Namespace: "default",
			Containers: []*podresources.ContainerResources{{
				Name: a.ContainerName, Devices: []*podresources.ContainerDevices{{ResourceName: a.ResourceName, DeviceIds: a.ids()}},
			}},
		})
	}
	return answer, nil
}

// errNone is the error if too few devices are healthy and free, or if there is no plugin.
var errNone = errors.New("none to be had")

// choose returns n healthy and free devices, in the random order of the kubelet's map. It asks the plugin for its
// preference.
func (k *kubelet) choose(ctx context.Context, resource string, n int, shuffle func([]string)) (*registered, []string, error) {
	k.mu.Lock()
	p := k.plugins[resource]
	k.clean()
	var free []string
	if p != nil && p.connected {
		for id, health := range p.devices {
			if health == pluginapi.Healthy && !k.held(id) {
				free = append(free, id)
			}
		}
	}
	k.mu.Unlock()
	if len(free) < n {
		return nil, nil, errNone
	}
	slices.Sort(free)
	shuffle(free)
	_, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: free, AllocationSize: int32(n)}},
	})
	return p, free[:n], err // any choice is valid, because the kubelet does not always ask for the preference
}

// held reports whether a pod holds a device. The caller holds mu.
func (k *kubelet) held(id string) bool {
	return slices.ContainsFunc(k.assigned, func(a assignment) bool { return slices.Contains(a.ids(), id) })
}

// allocate gives n devices of a resource to a pod.
func (k *kubelet) allocate(ctx context.Context, pod, resource string, n int, shuffle func([]string)) (
	ids []string, answer *pluginapi.ContainerAllocateResponse, err error,
) {
	p, ids, err := k.choose(ctx, resource, n, shuffle)
	if err != nil {
		return nil, nil, err
	}
	reply, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return nil, nil, err
	}
	if len(reply.GetContainerResponses()) != 1 {
		return nil, nil, fmt.Errorf("%d answers for one container", len(reply.GetContainerResponses()))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		if _, ok := k.plugins[resource].devices[id]; !ok {
			k.recordCrash(fmt.Errorf("%s left the list during its Allocate", id))
		}
	}
	kept, err := proto.Marshal(reply.GetContainerResponses()[0])
	if err != nil {
		return nil, nil, err
	}
	k.assigned = append(k.assigned, assignment{
		PodUID: pod, ContainerName: "main", ResourceName: resource, DeviceIDs: map[string][]string{"-1": ids}, AllocResp: kept,
	})
	return ids, reply.GetContainerResponses()[0], k.save()
}

// askInVain requests a device that no plugin has. A pod may have got a device and ended before a checkpoint was
// written. The kubelet's next call of Allocate then proves that the kubelet has finished the previous call.
func (k *kubelet) askInVain(ctx context.Context) {
	k.mu.Lock()
	plugins := slices.Collect(maps.Values(k.plugins))
	k.mu.Unlock()
	for _, p := range plugins {
		_, _ = p.client.Allocate(ctx, &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"unknown"}}},
		})
	}
}

// start calls PreStartContainer.
func (k *kubelet) start(ctx context.Context, resource string, ids []string) error {
	k.mu.Lock()
	p := k.plugins[resource]
	k.mu.Unlock()
	if p == nil {
		return errNone
	}
	_, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}

// view returns the health of a resource's devices, or nil while its plugin is not connected.
func (k *kubelet) view(resource string) map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.plugins[resource]; p != nil && p.connected {
		return p.devices // never modified
	}
	return nil
}

// failure returns the cause of the crash, or nil.
func (k *kubelet) failure() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.crash
}
