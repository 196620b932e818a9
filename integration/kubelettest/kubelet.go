// SPDX-License-Identifier: Apache-2.0

// Package kubelettest is a small device manager for tests. It behaves like the kubelet's device manager, as far as the tests
// need it. It runs no container and talks to no API server.
package kubelettest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	socketName     = "kubelet.sock"
	checkpointName = "kubelet_internal_checkpoint"
	// dialLimit is the maximum time that the kubelet waits for a plugin's socket
	// (pkg/kubelet/cm/devicemanager/plugin/v1beta1).
	dialLimit = 10 * time.Second
	// preStartLimit is the maximum duration of PreStartContainer (v1beta1.KubeletPreStartContainerRPCTimeoutInSecs).
	preStartLimit = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// Kubelet is a device manager that serves kubelet.sock in a directory. Its methods are safe for concurrent use.
type Kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	dir    string
	server *grpc.Server
	ctx    context.Context // context of all streams
	cancel context.CancelFunc

	mu        sync.Mutex
	resources map[string]*resource
	allocated map[string]map[string]string // UIDs of pods; the keys are resource and device
	answers   map[string][]byte            // answers of Allocate; keys are the UIDs of the pods
	saves     bool                         // the kubelet writes a checkpoint
	changed   chan struct{}                // closed and replaced at every change
}

// resource has the state of one resource. Kubelet.mu protects it.
type resource struct {
	conn      *grpc.ClientConn
	client    pluginapi.DevicePluginClient
	options   *pluginapi.DevicePluginOptions
	devices   []*pluginapi.Device
	connected bool
	lists     int // number of received messages
}

// Resource is the state of a resource, as "kubectl describe node" would show it.
type Resource struct {
	Name        string
	Capacity    int                 // number of devices, healthy or not
	Allocatable int                 // number of healthy devices, or 0 while the plugin is not connected
	Connected   bool                // the stream of the plugin is open
	Lists       int                 // number of lists since the plugin registered
	Devices     []*pluginapi.Device // the last list; the caller must not modify it
}

// Start removes all sockets from dir, like the kubelet, and serves kubelet.sock in it.
func Start(dir string) (*Kubelet, error) {
	if err := removeSockets(dir); err != nil {
		return nil, fmt.Errorf("start the device manager: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("start the device manager: %w", err)
	}
	l.SetUnlinkOnClose(false) // a killed kubelet leaves its socket
	k := &Kubelet{dir: dir, server: grpc.NewServer(), resources: make(map[string]*resource), allocated: make(map[string]map[string]string), answers: make(map[string][]byte), changed: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	pluginapi.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(l) // returns when the server is stopped
	return k, nil
}

// KeepCheckpoint reads the checkpoint. From now on the kubelet writes the checkpoint after each change.
func (k *Kubelet) KeepCheckpoint() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allocated, k.answers = readCheckpoint(k.dir)
	k.saves = true
}

func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type() == os.ModeSocket {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stop simulates a crash of the kubelet. All streams end. kubelet.sock stays and refuses connections.
func (k *Kubelet) Stop() {
	k.server.Stop()
	k.cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.resources {
		r.conn.Close()
	}
}

// Register implements the Registration service. Like the kubelet, it connects to the plugin and requests its options
// before it returns.
func (k *Kubelet) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if req.GetVersion() != pluginapi.Version {
		return nil, fmt.Errorf("version %q is not %q", req.GetVersion(), pluginapi.Version)
	}
	if !strings.Contains(req.GetResourceName(), "/") {
		return nil, fmt.Errorf("the ResourceName %q is invalid", req.GetResourceName())
	}
	conn, err := connect(ctx, filepath.Join(k.dir, req.GetEndpoint()))
	if err != nil {
		return nil, err
	}
	r := &resource{conn: conn, client: pluginapi.NewDevicePluginClient(conn)}
	if r.options, err = r.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
		conn.Close()
		return nil, err
	}
	k.mu.Lock()
	if old := k.resources[req.GetResourceName()]; old != nil {
		r.devices = old.devices
	}
	k.resources[req.GetResourceName()] = r
	k.mu.Unlock()
	go k.watch(req.GetResourceName(), r)
	return &pluginapi.Empty{}, nil
}

// connect dials a plugin's socket and waits until it answers.
func connect(ctx context.Context, path string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("dial device plugin: %w", err)
	}
	raw.Close()
	return grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
}

// watch processes the lists of a plugin until its stream ends.
func (k *Kubelet) watch(name string, r *resource) {
	defer k.update(func() { r.connected = false })
	stream, err := r.client.ListAndWatch(k.ctx, &pluginapi.Empty{})
	if err != nil {
		return
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return
		}
		k.update(func() {
			r.devices, r.connected = list.GetDevices(), true
			r.lists++
		})
	}
}

// update makes a change and writes the checkpoint, like the kubelet after each list and each Allocate.
func (k *Kubelet) update(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	if k.saves {
		k.writeCheckpoint()
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// assignment is an entry of the checkpoint (pkg/kubelet/cm/devicemanager/checkpoint, PodDevicesEntry).
type assignment struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           map[string][]string // keys are NUMA nodes
	AllocResp                           []byte
}

// checkpoint is the file.
type checkpoint struct {
	Data struct{ PodDeviceEntries []assignment }
}

// readCheckpoint returns the allocated devices in the checkpoint of a directory, and the answers for them. If there is
// no checkpoint, no pod has a device.
func readCheckpoint(dir string) (all map[string]map[string]string, answers map[string][]byte) {
	var text checkpoint
	if written, err := os.ReadFile(filepath.Join(dir, checkpointName)); err == nil {
		_ = json.Unmarshal(written, &text)
	}
	all, answers = make(map[string]map[string]string), make(map[string][]byte)
	for _, a := range text.Data.PodDeviceEntries {
		answers[a.PodUID] = a.AllocResp
		for _, ids := range a.DeviceIDs {
			give(all, a.ResourceName, ids, a.PodUID)
		}
	}
	return all, answers
}

func give(all map[string]map[string]string, resource string, ids []string, pod string) {
	if all[resource] == nil {
		all[resource] = make(map[string]string)
	}
	for _, id := range ids {
		all[resource][id] = pod
	}
}

// writeCheckpoint replaces the checkpoint. If the directory is gone, it does nothing.
func (k *Kubelet) writeCheckpoint() {
	var text checkpoint
	for name, allocated := range k.allocated {
		for id, pod := range allocated {
			text.Data.PodDeviceEntries = append(text.Data.PodDeviceEntries, assignment{pod, "c", name, map[string][]string{"-1": {id}}, k.answers[pod]})
		}
	}
	written, _ := json.Marshal(text)
	next := filepath.Join(k.dir, "."+checkpointName)
	if os.WriteFile(next, written, 0o600) == nil {
		_ = os.Rename(next, filepath.Join(k.dir, checkpointName))
	}
}

// Changed returns a channel that is closed at the next change of any resource. Take it before checking the state.
func (k *Kubelet) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// Resources returns the states of all resources that have ever registered, sorted by name.
func (k *Kubelet) Resources() []Resource {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []Resource
	for name, r := range k.resources {
		s := Resource{Name: name, Capacity: len(r.devices), Connected: r.connected, Lists: r.lists, Devices: r.devices}
		if r.connected {
			s.Allocatable = len(healthy(r.devices))
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Resource) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Resource returns the state of a resource, or the zero value if it has never registered.
func (k *Kubelet) Resource(name string) Resource {
	for _, r := range k.Resources() {
		if r.Name == name {
			return r
		}
	}
	return Resource{Name: name}
}

func healthy(devices []*pluginapi.Device) []string {
	var ids []string
	for _, d := range devices {
		if d.GetHealth() == pluginapi.Healthy {
			ids = append(ids, d.GetID())
		}
	}
	return ids
}
