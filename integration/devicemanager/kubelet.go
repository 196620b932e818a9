// SPDX-License-Identifier: Apache-2.0

// Package devicemanager gives a test a kubelet that consists of the real device manager, topology manager and
// PodResources server.
//
// Each life of that kubelet is a process. A kill cuts connections as a kubelet restart does, and a crash of the device
// manager is an error for the test instead of its end. The data that outlives a kubelet lives here. These are the pods
// and the view of the container runtime.
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

// Options describes a node. The zero value of all but Dir is useful.
type Options struct {
	Dir            string        // holds device-plugins/ and pod-resources/
	TopologyPolicy string        // "none" if empty
	NUMANodes      int           // one if zero
	FirstBatch     time.Duration // from kubelet.sock to the admission of the pods that were there before, or OnDemand
	Verbosity      int           // of the device manager's log, which is shown when it dies
	Socket         string        // what it makes instead of kubelet.sock, for one that stands between it and its plugins
	Boots          func()        // called before each life, or nil
	Booted         func() error  // called when it accepts connections, in each life, or nil
	Command        []string      // a stand-in that reads host.Env, or nil for the running program itself
}

// OnDemand as Options.FirstBatch lets Kubelet.FirstBatch say when.
const OnDemand time.Duration = -1

// Kubelet is a node with its kubelet, which may be dead. Safe for concurrent
// use, but one goroutine at a time starts and kills it.
type Kubelet struct {
	options Options

	mu    sync.Mutex // guards all below
	child *child
	pods  []protocol.Pod // what a kubelet finds at its start
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

// DevicePlugins is the directory of kubelet.sock.
func (k *Kubelet) DevicePlugins() string { return filepath.Join(k.options.Dir, "device-plugins") }

// PodResourcesSocket is the socket of the PodResources API.
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

// Kill ends the kubelet with SIGKILL. All connections break, and kubelet.sock and the checkpoint stay. A restart of the
// kubelet does the same.
func (k *Kubelet) Kill() { k.life().kill() }

// Signal sends the kubelet's process a signal, such as SIGSTOP.
func (k *Kubelet) Signal(s os.Signal) error { return k.life().cmd.Process.Signal(s) }

// Restart is Kill and Boot.
func (k *Kubelet) Restart(ctx context.Context) error {
	k.Kill()
	return k.Boot(ctx)
}

// Stop stops the device manager in good order, as no kubelet does.
func (k *Kubelet) Stop(ctx context.Context) error {
	c := k.life()
	if _, err := c.call(ctx, protocol.Request{Op: protocol.OpStop}); err != nil {
		return err
	}
	<-c.done
	return nil
}

// Log is what the device manager logged in this life.
func (k *Kubelet) Log() string { return k.life().stderr.String() }

func (k *Kubelet) life() *child {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.child
}

// FirstBatch waits until the pods that were there before the kubelet are admitted. A pod that was not admitted is lost.
// Its containers are killed, and it is one of the errors in the result.
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
	for uid, why := range c.rejected { // no goroutine writes after ready
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

// Admit gives the kubelet a new pod. A *protocol.Rejection is the end of it.
func (k *Kubelet) Admit(ctx context.Context, pod protocol.Pod) error {
	if _, err := k.life().call(ctx, protocol.Request{Op: protocol.OpAdmit, Pod: &pod}); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = append(k.pods, pod)
	return nil
}

// Remove ends a pod. Its devices are free at the kubelet's next look.
func (k *Kubelet) Remove(ctx context.Context, uid string) error {
	_, err := k.life().call(ctx, protocol.Request{Op: protocol.OpRemove, UID: uid})
	k.forget(uid)
	return err
}

// Run starts a container of a pod, which calls PreStartContainer, and tells
// what the container gets.
func (k *Kubelet) Run(ctx context.Context, uid, container string) (*protocol.RunOptions, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpRun, UID: uid, Container: container})
	if err != nil {
		return nil, err
	}
	k.SetState(uid, container, protocol.Running)
	return reply.Run, nil
}

// SetState is what the container runtime says of a container from now on. The
// kubelet only asks at its start.
func (k *Kubelet) SetState(uid, container string, s protocol.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.pods {
		if k.pods[i].UID == uid {
			// Copies, because Boot and callers hold the old slices.
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

// Capacity is what the node's status would say of each resource.
func (k *Kubelet) Capacity(ctx context.Context) (map[string]protocol.Counts, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpCapacity})
	return reply.Resources, err
}

// Wait waits until a resource reads as wanted, and returns how long after
// kubelet.sock that was (0.2 ms coarse in the first second).
func (k *Kubelet) Wait(ctx context.Context, resource string, want protocol.Counts, timeout time.Duration) (time.Duration, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpWait, Resource: resource, Want: &want, Timeout: timeout})
	return reply.SinceSock, err
}

// Devices are the devices of all resources, as of the last ListAndWatch
// messages.
func (k *Kubelet) Devices(ctx context.Context) ([]protocol.Device, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpDevices})
	return reply.Devices, err
}

// Assigned are the devices that a container holds.
func (k *Kubelet) Assigned(ctx context.Context, uid, container string) ([]protocol.Device, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpAssigned, UID: uid, Container: container})
	return reply.Devices, err
}

// Status is the health of a pod's devices as its status shows it.
func (k *Kubelet) Status(ctx context.Context, uid string) ([]protocol.Device, error) {
	reply, err := k.life().call(ctx, protocol.Request{Op: protocol.OpStatus, UID: uid})
	return reply.Devices, err
}

// Age moves the time at which the plugin of a resource left back by that much. The device manager forgets the resource
// after five minutes.
func (k *Kubelet) Age(ctx context.Context, resource string, by time.Duration) error {
	_, err := k.life().call(ctx, protocol.Request{Op: protocol.OpAge, Resource: resource, By: by})
	return err
}

// PodResources asks the PodResources API, over its socket, who holds what.
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
