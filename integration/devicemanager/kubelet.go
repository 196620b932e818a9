// SPDX-License-Identifier: Apache-2.0

// Package devicemanager provides tests with a kubelet that consists of the real device manager, topology manager and
// PodResources server.
//
// Each start of that kubelet is a separate process. So killing it breaks connections like a kubelet restart, and a
// crash of the device manager is an error for the test instead of its end. This package keeps the data that outlives a
// kubelet, which are the pods and the view of the container runtime.
package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// Options describes a node. All fields except Dir may be zero.
type Options struct {
	Dir            string        // contains device-plugins/ and pod-resources/
	TopologyPolicy string        // "none" if empty
	NUMANodes      int           // number of NUMA nodes; zero means one
	FirstBatch     time.Duration // time from kubelet.sock to the admission of the earlier pods, or OnDemand
	Verbosity      int           // verbosity of the device manager's log, which is printed if the device manager crashes
	Socket         string        // name of the socket instead of kubelet.sock, for a proxy between the kubelet and its plugins
	Boots          func()        // called before each start, or nil
	Booted         func() error  // called each time the kubelet accepts connections, or nil
	Command        []string      // a program that reads host.Env, or nil for the running program itself
}

// OnDemand as Options.FirstBatch means that the test calls Kubelet.FirstBatch.
const OnDemand time.Duration = -1

// Kubelet is a node with its kubelet, which may not be running. It is safe for concurrent use, but only one goroutine
// at a time may start and kill it.
type Kubelet struct {
	options Options

	mu    sync.Mutex // guards the fields below
	child *child
	pods  []protocol.Pod // the pods that a kubelet finds when it starts
}

// Start starts a kubelet and returns when kubelet.sock accepts connections.
func Start(ctx context.Context, o Options) (*Kubelet, error) {
	if o.Command == nil {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own program: %w", err)
		}
		o.Command = []string{self}
	}
	k := &Kubelet{options: o}
	return k, k.Boot(ctx)
}

// DevicePlugins returns the directory of kubelet.sock.
func (k *Kubelet) DevicePlugins() string { return filepath.Join(k.options.Dir, "device-plugins") }

// PodResourcesSocket returns the path of the PodResources socket.
func (k *Kubelet) PodResourcesSocket() string {
	return filepath.Join(k.options.Dir, "pod-resources", "kubelet.sock")
}

// Boot starts the kubelet again after Kill, and returns when kubelet.sock accepts connections. The pods are admitted
// later, by FirstBatch.
func (k *Kubelet) Boot(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.options.Boots != nil {
		k.options.Boots()
	}
	c, err := spawn(ctx, k.options.Command, protocol.Options{
		DevicePlugins: k.DevicePlugins(), Socket: k.options.Socket, PodResources: k.PodResourcesSocket(),
		TopologyPolicy: k.options.TopologyPolicy, NUMANodes: k.options.NUMANodes,
		Pods: k.pods, FirstBatch: k.options.FirstBatch, Verbosity: k.options.Verbosity,
	})
	if err != nil {
		return err
	}
	k.child = c
	if k.options.Booted == nil {
		return nil
	}
	return k.options.Booted()
}

// Kill ends the kubelet with SIGKILL. All connections break, and kubelet.sock and the checkpoint remain. A restart of
// the kubelet has the same effect.
func (k *Kubelet) Kill() { k.life().kill() }

// Signal sends the kubelet's process a signal, such as SIGSTOP.
func (k *Kubelet) Signal(s os.Signal) error { return k.life().cmd.Process.Signal(s) }

// Restart calls Kill and Boot.
func (k *Kubelet) Restart(ctx context.Context) error {
	k.Kill()
	return k.Boot(ctx)
}

// Stop stops the device manager correctly, which a real kubelet never does.
func (k *Kubelet) Stop(ctx context.Context) error {
	c := k.life()
	if _, err := c.call(ctx, protocol.Request{Op: protocol.OpStop}); err != nil {
		return err
	}
	<-c.done
	return nil
}

// Log returns the log of the device manager since its last start.
func (k *Kubelet) Log() string { return k.life().stderr.String() }

func (k *Kubelet) life() *child {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.child
}

// FirstBatch waits until the pods from before the kubelet's start are admitted. A pod that was not admitted is lost.
// Its containers are killed, and the result includes an error for it.
func (k *Kubelet) FirstBatch(ctx context.Context) error {
	c := k.life()
	if k.options.FirstBatch < 0 {
		if _, err := c.call(ctx, protocol.Request{Op: protocol.OpBatch}); err != nil {
			return err
		}
	}
	select {
	case <-c.ready:
	case <-c.done:
		return fmt.Errorf("admit the first batch: %w", c.died())
	case <-ctx.Done():
		return fmt.Errorf("admit the first batch: %w", ctx.Err())
	}
	var lost []error
	for uid, why := range c.rejected { // no goroutine writes the map after ready
		lost = append(lost, fmt.Errorf("pod %s: %w", uid, why))
		k.forget(uid)
	}
	return errors.Join(lost...)
}

func (k *Kubelet) forget(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = slices.DeleteFunc(k.pods, func(p protocol.Pod) bool { return p.UID == uid })
}

// Admit gives the kubelet a new pod. A *protocol.Rejection ends the pod.
func (k *Kubelet) Admit(ctx context.Context, pod protocol.Pod) error {
	if _, err := k.life().call(ctx, protocol.Request{Op: protocol.OpAdmit, Pod: &pod}); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = append(k.pods, pod)
	return nil
}

// Remove ends a pod. Its devices are freed at the kubelet's next check.
func (k *Kubelet) Remove(ctx context.Context, uid string) error {
	_, err := k.life().call(ctx, protocol.Request{Op: protocol.OpRemove, UID: uid})
	k.forget(uid)
	return err
}

// Run starts a container of a pod, which calls PreStartContainer, and returns what the container gets.
func (k *Kubelet) Run(ctx context.Context, uid, container string) (*protocol.RunOptions, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpRun, UID: uid, Container: container})
	if err != nil {
		return nil, err
	}
	k.SetState(uid, container, protocol.Running)
	return reply.Run, nil
}

// SetState sets the state that the simulated container runtime reports for a container. The kubelet reads this state only at
// its start.
func (k *Kubelet) SetState(uid, container string, s protocol.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.pods {
		if k.pods[i].UID == uid {
			// The slices are copied, because Boot and callers still use the old ones.
			k.pods[i].Init = withState(k.pods[i].Init, container, s)
			k.pods[i].Containers = withState(k.pods[i].Containers, container, s)
		}
	}
}

func withState(list []protocol.Container, name string, s protocol.State) []protocol.Container {
	list = slices.Clone(list)
	for i := range list {
		if list[i].Name == name {
			list[i].State = s
		}
	}
	return list
}

// Capacity returns the capacity of each resource as in the node's status.
func (k *Kubelet) Capacity(ctx context.Context) (map[string]protocol.Counts, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpCapacity})
	return reply.Resources, err
}

// Wait waits until a resource has the given counts, and returns the time since kubelet.sock (with a resolution of 0.2
// ms in the first second).
func (k *Kubelet) Wait(ctx context.Context, resource string, want protocol.Counts, timeout time.Duration) (time.Duration, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpWait, Resource: resource, Want: &want, Timeout: timeout})
	return reply.SinceSock, err
}

// Devices returns the devices of all resources from the last ListAndWatch messages.
func (k *Kubelet) Devices(ctx context.Context) ([]protocol.Device, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpDevices})
	return reply.Devices, err
}

// Assigned returns the devices of a container.
func (k *Kubelet) Assigned(ctx context.Context, uid, container string) ([]protocol.Device, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpAssigned, UID: uid, Container: container})
	return reply.Devices, err
}

// Status returns the health of a pod's devices as its status shows it.
func (k *Kubelet) Status(ctx context.Context, uid string) ([]protocol.Device, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpStatus, UID: uid})
	return reply.Devices, err
}

// Age moves the time at which the plugin of a resource ended into the past. The device manager forgets the resource
// after five minutes.
func (k *Kubelet) Age(ctx context.Context, resource string, by time.Duration) error {
	_, err := k.life().call(ctx, protocol.Request{Op: protocol.OpAge, Resource: resource, By: by})
	return err
}

// PodResources returns the holders of devices from the PodResources API, over its socket.
func (k *Kubelet) PodResources(ctx context.Context) ([]*podresources.PodResources, error) {
	conn, err := grpc.NewClient("unix://"+k.PodResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial PodResources: %w", err)
	}
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list PodResources: %w", err)
	}
	return list.GetPodResources(), nil
}
