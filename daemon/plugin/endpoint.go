// SPDX-License-Identifier: Apache-2.0

// Package plugin serves resources to the kubelet as a device plugin. For each resource, an endpoint creates a socket in the
// kubelet's device plugin directory, registers with the device manager, and serves the DevicePlugin API v1beta1.
//
// For an endpoint, an event means only that something may have changed. After each event, the endpoint checks its own socket,
// kubelet.sock, the open stream and the last registration. The endpoint then performs the steps that are still necessary. A lost,
// repeated or late event therefore does no harm. The endpoint also performs this check periodically, without an event.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/clients"
	"github.com/metalplug/metalplug/internal/fsutil"
	"github.com/metalplug/metalplug/internal/liveness"
)

const (
	// connectTimeout is how long the endpoint tries to connect to a new kubelet.sock. The endpoint tries once every
	// connectInterval. The kubelet binds the socket before it listens, so the first attempts may fail.
	connectTimeout  = time.Second
	connectInterval = time.Millisecond
	// checkInterval is the interval between checks without an event while no stream is open.
	checkInterval = time.Second
	// registerLimit is the maximum duration of a Register call. During the call, the kubelet connects to the endpoint's
	// socket.
	registerLimit = 3 * time.Second
	// streamLimit is the maximum time between a registration and the moment when the kubelet opens its stream.
	streamLimit = time.Second
	// settlePause is the minimum time between the end of a stream and the next registration with the same kubelet. Before
	// Kubernetes 1.37, a device manager that is still processing the old stream's end would disconnect the new one.
	settlePause = 100 * time.Millisecond
	// lastPause is the maximum time between two attempts to register.
	lastPause = time.Second
	// receiveSize is the maximum size of a request in bytes. A GetPreferredAllocation request contains the IDs of all
	// free devices.
	receiveSize = 16 << 20
)

// Resource configures an endpoint.
type Resource struct {
	Name        string
	Shares      int    // number of times that each device is offered; 0 means 1
	Spread      bool   // prefer devices with few shares in use to devices that are near each other
	Permissions string // a container's permissions on the nodes, from the letters "rwm"
	Optional    bool   // register the resource only after it has had a device
	Yields      bool   // do not register while another plugin serves the name
	Variable    string // environment variable that contains the IDs of a container's devices
	// further variables; {id}, {pci} and {node} in them are replaced with the devices' values
	Env map[string]string
	// CDI returns the CDI names of devices. CDI returns an error if the container runtime cannot find these names. Allocate
	// calls CDI. If CDI is nil, containers get device nodes instead.
	CDI func(devices []*inventory.Status) ([]string, error)
	// Member returns the resource that a bundle's member belongs to. Member returns an error if that resource is no longer
	// configured. Allocate calls Member. Member is nil if this resource has no bundles.
	Member func(resource string) (Resource, error)
}

// Endpoint serves one resource to the kubelet.
type Endpoint struct {
	Resource  Resource
	Dir       string // the kubelet's device plugin directory
	Inventory *inventory.Inventory
	Host      *device.Host
	Watch     *Watch
	Log       *slog.Logger
	// Allocated is called with a container's devices before the kubelet gets the answer. Allocated must not block.
	Allocated func([]*inventory.Status)
	// Start prepares devices for a container that is starting. The devices may be members of bundles. Start may block until ctx
	// ends.
	Start   func(ctx context.Context, devices []*inventory.Status) error
	Metrics Metrics
	Changed func() // called when the result of [Endpoint.Status] has changed
	// Counted returns the IDs of all devices that the kubelet counts as healthy for the resource, whichever plugin listed them.
	// Counted may block for several seconds.
	Counted func(ctx context.Context) ([]string, error)
	// Parked keeps an endpoint's connection open if the endpoint ends while its resource is held back.
	Parked *Parked
	// Before is the time when the last endpoint in this process ended, or zero. The kubelet must first process that endpoint's end.
	Before time.Time

	probe    liveness.Probe
	status   atomic.Value // contains an [api.Registration]
	server   *grpc.Server // serves each socket that the endpoint creates
	streams  streams
	conflict conflict
	socket   socket
	kubelet  registration
}

// Status returns the endpoint's registration state.
func (e *Endpoint) Status() api.Registration {
	s := e.lastStatus()
	if s.Connected = s.Held == "" && e.streams.client() != nil; s.Connected {
		s.Complaint = "" // a complaint about one kubelet does not apply to the next one
	}
	return s
}

// lastStatus returns the status that Run set last.
func (e *Endpoint) lastStatus() api.Registration {
	s, _ := e.status.Load().(api.Registration)
	return s
}

// Run serves the resource until ctx ends, and registers with each new kubelet. Run calls started() after its first attempt to
// find a kubelet. By then, the endpoint's socket exists, unless the kubelet's directory is missing.
func (e *Endpoint) Run(ctx context.Context, started func()) {
	defer e.probe.End()
	e.Log = e.Log.With("resource", e.Resource.Name)
	e.socket.path = filepath.Join(e.Dir, socketName(e.Resource.Name, time.Now()))
	e.streams.changed = make(chan struct{}, 1)
	e.conflict.e = e
	e.server = e.newServer()
	defer func() { // stopping the server ends the kubelet's stream
		e.server.Stop()
		e.socket.drop()
	}()
	removeStale(e.Dir, e.Resource.Name)
	started = sync.OnceFunc(started)
	hints, stop := e.Watch.Subscribe()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	// The channel "devices" is closed when the devices change, or nil if the resource should be registered now.
	var devices <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hints:
		case <-devices:
		case <-e.streams.changed:
			e.Changed()
		case <-e.probe.Asked():
			continue
		case <-timer.C:
		}
		var wait time.Duration
		if devices = e.awaitFirstDevice(); devices == nil {
			wait = e.converge(ctx)
		}
		started()
		timer.Stop()
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

// Alive waits until Run has made progress or has ended, and then returns nil. If ctx ends first, Alive returns ctx's error. Run
// makes no progress while it waits for an answer from the kubelet.
func (e *Endpoint) Alive(ctx context.Context) error {
	return e.probe.Alive(ctx, "endpoint of "+e.Resource.Name)
}

// awaitFirstDevice returns nil if the resource should be registered. An optional resource that has not had a device yet should
// not be registered. For that resource, awaitFirstDevice returns a channel that is closed when the devices change.
func (e *Endpoint) awaitFirstDevice() <-chan struct{} {
	snapshot, changed := e.Inventory.Snapshot()
	if !e.Resource.Optional || len(snapshot.Offer(e.Resource.Name).Devices) > 0 {
		e.Resource.Optional = false
		return nil
	}
	return changed
}

// converge performs the missing steps until the kubelet knows the endpoint's devices. The result is the time until the next check
// without an event, or 0 if no such check is necessary.
func (e *Endpoint) converge(ctx context.Context) time.Duration {
	if err := e.ensureSocket(); err != nil {
		e.complain("endpoint not listening", err)
		return checkInterval
	}
	path := filepath.Join(e.Dir, kubeletSocket)
	kubelet := socketIdentity(path)
	e.kubelet.updateKubelet(kubelet, e.Before)
	if kubelet == (identity{}) {
		e.complain("waiting for the kubelet", noKubeletError(path))
		return checkInterval
	}
	if e.conflict.isHeld() {
		if wait := e.conflict.reconsider(ctx, kubelet); wait > 0 {
			return wait
		}
	}
	opened, _, _ := e.streams.lastStream()
	switch {
	case e.streams.client() != nil && kubelet == e.kubelet.registered:
		return e.conflict.compare(ctx, kubelet)
	case e.streams.client() != nil:
		return e.checkNewSocket(kubelet)
	case kubelet == e.kubelet.registered && !opened:
		if wait := streamLimit - time.Since(e.kubelet.at); wait > 0 {
			return wait
		}
	}
	e.afterStream(kubelet)
	if wait := time.Until(e.kubelet.notBefore); wait > 0 {
		return wait
	}
	if wait := e.conflict.precheck(ctx, kubelet); wait > 0 {
		return wait
	}
	return e.register(ctx, kubelet)
}

// ensureSocket creates and serves the endpoint's socket if it does not exist.
func (e *Endpoint) ensureSocket() error {
	made, err := e.socket.ensure()
	if made != nil {
		// Serve returns when the server or the listener is closed.
		go e.server.Serve(&clients.Listener{Listener: made, Surplus: unauthorizedClient})
	}
	return err
}

// noKubeletError returns an error that describes why there is no kubelet to register with.
func noKubeletError(path string) error {
	if _, err := os.Lstat(path); err != nil {
		return fmt.Errorf("find %s: %w", path, fsutil.Cause(err))
	}
	return fmt.Errorf("find %s: the file is not a socket", path)
}

// complain logs an error only once, rather than on every attempt. The error stays in the status until the kubelet knows the
// resource. A missing directory is logged only at level info, because the kubelet creates the directory at its first start.
func (e *Endpoint) complain(message string, err error) {
	complaint := message + ": " + err.Error()
	if complaint == e.lastStatus().Complaint {
		return
	}
	e.set(func(s *api.Registration) { s.Complaint = complaint })
	level := slog.LevelWarn
	if errors.Is(err, fs.ErrNotExist) {
		level = slog.LevelInfo
	}
	e.Log.Log(context.Background(), level, message, "err", err)
}

// setRegistered records whether the kubelet knows the resource. If the kubelet knows the resource, setRegistered also clears
// the complaint.
func (e *Endpoint) setRegistered(registered bool) {
	e.set(func(s *api.Registration) {
		if s.Registered = registered; registered {
			s.Complaint = ""
		}
	})
}

// set changes the status, and may be called only by the goroutine of Run.
func (e *Endpoint) set(change func(*api.Registration)) {
	s := e.lastStatus()
	change(&s)
	e.status.Store(s)
	e.Changed()
}

// Metrics contains callbacks that update the counters of endpoints. The callbacks are called from many goroutines and must not
// block. The argument err is nil if the call succeeded.
type Metrics struct {
	// Answered is called for each Allocate call, and for each PreStartContainer call that is refused.
	Answered   func(resource, call string, err error)
	Registered func(resource string, err error) // called after each attempt to register
	// Sent is called when a list that an event caused has been sent. The argument is the time since that event.
	Sent func(sinceEvent time.Duration)
}
