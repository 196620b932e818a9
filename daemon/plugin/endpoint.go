// SPDX-License-Identifier: Apache-2.0

// Package plugin is a resource as the kubelet sees it. It has a socket in the kubelet's device plugin directory, is
// registered with the device manager, and serves the DevicePlugin API v1beta1.
//
// An endpoint never acts on the content of an event. After each event it looks at four things (our socket, kubelet.sock,
// the open stream, the last registration) and does the missing steps. So a hint that is lost, repeated or late does no
// harm, and the slow look without a hint ends in the same state.
package plugin

import (
	"cmp"
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
	"github.com/metalplug/metalplug/internal/fsutil"
	"github.com/metalplug/metalplug/internal/liveness"
)

const (
	// eager is how long after a new kubelet.sock, and eagerPause how often, a connection is tried without a longer pause.
	// The kubelet binds before it listens, so the first attempt may be refused.
	eager      = time.Second
	eagerPause = time.Millisecond
	// backstop is how often an endpoint without a stream looks without a hint.
	backstop = time.Second
	// registerLimit bounds a Register call, during which the kubelet dials us.
	registerLimit = 3 * time.Second
	// streamLimit is how long after a registration the kubelet may take to open its stream.
	streamLimit = time.Second
	// settlePause is the least time between the end of a stream and the next registration with the same kubelet. Its
	// device manager may still be busy with the end of the old one, and would then cut off the new one (before 1.37).
	settlePause = 100 * time.Millisecond
	// restartPause is the same where an endpoint before this one has ended, of which only the time is known.
	restartPause = 2 * settlePause
	// lastPause is the longest time between two attempts to register.
	lastPause = time.Second
	// receiveSize is the largest request in bytes. GetPreferredAllocation carries the IDs of all free devices.
	receiveSize = 16 << 20
)

// Resource is what an endpoint offers, and how.
type Resource struct {
	Name        string
	Shares      int               // how many times each device is offered. 0 is 1
	Spread      bool              // prefer the devices with the fewest shares taken to those that are close to each other
	Permissions string            // of "rwm", for the nodes of a container
	Optional    bool              // the kubelet hears of it only once it has a device
	Yields      bool              // it is not registered while another plugin serves its name
	Variable    string            // environment variable in which a container finds the IDs of its devices
	Env         map[string]string // more variables, with {id}, {pci} and {node} for each device
	// CDI returns the names by which the container runtime finds devices in a CDI spec, or an error with the reason why
	// it would not. Allocate calls it. If it is nil, containers get the device nodes.
	CDI func(devices []*inventory.Status) ([]string, error)
	// Start prepares devices for a container that is about to start. It may block for as long as ctx allows. It may be
	// nil.
	Start func(ctx context.Context, devices []*inventory.Status) error
	// Member returns the resource of a member of the bundles that this resource has. The error is that of a resource which is
	// not configured any more. Allocate calls it. It is nil for a resource that has no bundles.
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
	// Allocated is called with the devices that a container is given, before the kubelet has its answer. It must not
	// block. It may be nil.
	Allocated func([]*inventory.Status)
	Metrics   Metrics
	Changed   func() // called when the endpoint's [Status] has changed, or nil
	// Counted asks the kubelet which devices of the resource it counts as healthy, of any plugin. It may block for some
	// seconds. The error is [kubelet.ErrNotCounted] of a kubelet that never answers. If it is nil, nothing is held back.
	Counted func(ctx context.Context) ([]string, error)
	Parked  *Parked // connections that outlive the endpoint while it is held back, or nil
	// Before is when the last endpoint of the resource, also of another process, was registered or ended, or zero. A
	// kubelet that was there then has to deal with its end first.
	Before time.Time

	probe    liveness.Probe
	status   atomic.Value // of Status
	server   *grpc.Server // serves all incarnations of the socket
	streams  streams
	conflict conflict
	socket   socket
	kubelet  registration
}

// Status returns how the endpoint stands with the kubelet.
func (e *Endpoint) Status() api.Standing {
	s := e.last()
	if s.Connected = s.Held == "" && e.streams.open(); s.Connected {
		s.Complaint = "" // it is about the next kubelet
	}
	return s
}

// last returns the status as Run has set it.
func (e *Endpoint) last() api.Standing {
	s, _ := e.status.Load().(api.Standing)
	return s
}

// Run serves the resource until ctx ends, registering with every kubelet that comes. It calls started after the first
// look for one. The socket is there by then, if the kubelet's directory is.
func (e *Endpoint) Run(ctx context.Context, started func()) {
	defer e.probe.End()
	e.Log = e.Log.With("resource", e.Resource.Name)
	e.socket.path = filepath.Join(e.Dir, socketName(e.Resource.Name, time.Now()))
	e.streams.changed = make(chan struct{}, 1)
	e.conflict.e, e.kubelet.begun = e, time.Now()
	e.Parked = cmp.Or(e.Parked, &Parked{})
	e.server = e.newServer()
	defer func() { // the kubelet sees its stream end
		e.server.Stop()
		e.socket.drop()
	}()
	removeStale(e.Dir, e.Resource.Name)
	started = sync.OnceFunc(started)
	hints, stop := e.Watch.Subscribe()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var devices <-chan struct{} // closed when they change, while the kubelet is not to hear of the resource
	for {
		select {
		case <-ctx.Done():
			return
		case <-hints:
		case <-devices:
		case <-e.streams.changed:
			e.tell()
		case <-e.probe.Asked():
			continue
		case <-timer.C:
		}
		var wait time.Duration
		if devices = e.unwanted(); devices == nil {
			wait = e.converge(ctx)
		}
		started()
		timer.Stop()
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

// Alive returns once Run has made progress or has ended, or with the error of ctx. It may take as long as the kubelet may
// take to answer.
func (e *Endpoint) Alive(ctx context.Context) error {
	return e.probe.Alive(ctx, "endpoint of "+e.Resource.Name)
}

// unwanted returns a channel that is closed when the devices change, until an optional resource has had one, or else nil.
func (e *Endpoint) unwanted() <-chan struct{} {
	snapshot, changed := e.Inventory.Snapshot()
	if !e.Resource.Optional || len(snapshot.Offer(e.Resource.Name).Devices) > 0 {
		e.Resource.Optional = false
		return nil
	}
	return changed
}

// converge does the steps that are missing until the kubelet knows our devices. It returns when to look again without a
// hint, or 0 for never.
func (e *Endpoint) converge(ctx context.Context) time.Duration {
	if err := e.ensureSocket(); err != nil {
		e.complain("endpoint not listening", err)
		return backstop
	}
	path := filepath.Join(e.Dir, kubeletSocket)
	kubelet := socketIdentity(path)
	e.kubelet.look(kubelet, e.Before)
	if kubelet == (identity{}) {
		e.complain("waiting for the kubelet", absent(path))
		return backstop
	}
	if e.conflict.hold != nil {
		if wait := e.conflict.reconsider(ctx, kubelet); wait > 0 {
			return wait
		}
	}
	opened, _, _ := e.streams.last()
	switch {
	case e.streams.open() && kubelet == e.kubelet.registered:
		return e.conflict.compare(ctx, kubelet)
	case e.streams.open():
		return e.replaced(kubelet)
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

// ensureSocket makes our socket if it is not there, and serves it.
func (e *Endpoint) ensureSocket() error {
	made, err := e.socket.ensure()
	if made != nil {
		go e.server.Serve(&clients{UnixListener: made, isKubelet: e.streams.isKubelet, log: e.Log}) // until either is closed
	}
	return err
}

// absent returns why there is no kubelet to register with.
func absent(path string) error {
	if _, err := os.Lstat(path); err != nil {
		return fmt.Errorf("look for %s: %w", path, fsutil.Cause(err))
	}
	return fmt.Errorf("look for %s: it is not a socket", path)
}

// complain logs an error once, not at every attempt, and shows it until the kubelet knows the resource. A missing directory is
// normal before the kubelet's first start.
func (e *Endpoint) complain(message string, err error) {
	complaint := message + ": " + err.Error()
	if complaint == e.last().Complaint {
		return
	}
	e.set(func(s *api.Standing) { s.Complaint = complaint })
	level := slog.LevelWarn
	if errors.Is(err, fs.ErrNotExist) {
		level = slog.LevelInfo
	}
	e.Log.Log(context.Background(), level, message, "err", err)
}

// setRegistered notes whether the kubelet knows the resource. If it does, the complaint is over.
func (e *Endpoint) setRegistered(registered bool) {
	e.set(func(s *api.Standing) {
		if s.Registered = registered; registered {
			s.Complaint = ""
		}
	})
}

// set changes the status. Only Run calls it.
func (e *Endpoint) set(change func(*api.Standing)) {
	s := e.last()
	change(&s)
	e.status.Store(s)
	e.tell()
}

func (e *Endpoint) tell() {
	if e.Changed != nil {
		e.Changed()
	}
}
