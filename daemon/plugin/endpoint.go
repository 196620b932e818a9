// SPDX-License-Identifier: Apache-2.0

// Package plugin is a resource as the kubelet sees it: a socket in the kubelet's device plugin directory, registered
// with its device manager, that serves the DevicePlugin API v1beta1.
//
// An endpoint never reacts to what an event says. Whatever happens, it looks at four things (our socket, kubelet.sock,
// the open stream, the last registration) and does what is missing. So a hint that is lost, repeated or late does no
// harm, and the slow look without a hint ends in the same state.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/liveness"
)

const (
	// eager is how long after a new kubelet.sock, and how often, a connection is tried without pause: the kubelet binds
	// before it listens, so the first attempt may be refused.
	eager      = time.Second
	eagerPause = time.Millisecond
	// backstop is how often an endpoint without a stream looks without a hint.
	backstop = time.Second
	// registerLimit bounds a Register call, during which the kubelet dials us.
	registerLimit = 3 * time.Second
	// streamLimit is how long after a registration the kubelet may take to open its stream.
	streamLimit = time.Second
	// settlePause is the least time between the end of a stream and the next registration with the same kubelet: its
	// device manager may still be busy with the end of the old one, and would then cut off the new one (before 1.37).
	settlePause = 100 * time.Millisecond
	// lastPause is the longest time between two attempts to register.
	lastPause = time.Second
	// receiveSize is the largest request in bytes: GetPreferredAllocation carries the IDs of all free devices.
	receiveSize = 16 << 20
)

// Resource is what an endpoint offers, and how.
type Resource struct {
	Name        string
	Shares      int    // how many times each device is offered; 0 is 1
	Spread      bool   // prefer the devices with the fewest shares taken to those that are close to each other
	Permissions string // of "rwm", for the nodes of a container
	Optional    bool   // the kubelet hears of it only once it has a device
	Yields      bool   // it is held back while another plugin serves its name
	Variable    string // environment variable in which a container finds the IDs of its devices
	// CDI returns the names by which the container runtime finds devices in a CDI spec, or why it would not find them.
	// It is called when a container is to get them. nil: containers get the device nodes.
	CDI func(devices []*inventory.Status) ([]string, error)
	// Start makes devices fit for a container that is about to start; it may block for as long as ctx allows. nil: there is
	// nothing to do.
	Start func(ctx context.Context, devices []*inventory.Status) error
}

// Endpoint serves one resource to the kubelet.
type Endpoint struct {
	Resource  Resource
	Dir       string // the kubelet's device plugin directory
	Inventory *inventory.Inventory
	Host      *device.Host
	Watch     *Watch
	Log       *slog.Logger
	// Allocated is told of the devices that a container is given, before the kubelet has its answer; it must not block.
	// May be nil.
	Allocated func([]*inventory.Status)
	Tally     Tally
	Changed   func() // called when the endpoint's [Status] has changed; may be nil
	// Counted asks the kubelet which devices of the resource it counts as healthy, of whichever plugin. It may block for some
	// seconds. The error is [ErrNotCounted] of a kubelet that never answers. nil: nothing is held back.
	Counted   func(ctx context.Context) ([]string, error)
	Peers     *Peers  // the other plugins; nil: none is known
	Parked    *Parked // connections that outlive the endpoint while it is held back; may be nil
	Restarted bool    // another endpoint has served the resource, also in another process: its end must reach the kubelet first

	probe   liveness.Probe
	name    string       // of the socket
	server  *grpc.Server // serves all incarnations of the socket
	streams streams
	status  atomic.Pointer[Status]
	asksUs  atomic.Bool // the kubelet has asked for a device that is not ours; Run takes it

	// Owned by Run.
	rivalry  rivalry
	listener *net.UnixListener
	own      identity // of the socket that the listener made
	// unreachable is why nobody may connect to the socket that was made last, as of unreached; nil: it can be reached.
	unreachable error
	unreached   time.Time
	registered  identity  // kubelet.sock at the last registration
	since       time.Time // of that registration
	firstSeen   time.Time // of the kubelet.sock that is there now, since it was of interest
	seen        identity
	looked      bool          // for a kubelet.sock at all
	known       bool          // that kubelet has known an endpoint of the resource
	unheard     bool          // and may not have heard of the end of the one before this one
	pause       time.Duration // before the next attempt; 0: none has gone wrong
	notBefore   time.Time     // of the next attempt
	complaint   string        // the last error, logged once
	standing    Status        // as was told last, but for the stream
}

// Status is how an endpoint stands with the kubelet.
type Status struct {
	Registered bool   // the last registration was accepted
	Connected  bool   // the kubelet's ListAndWatch stream is open
	Complaint  string // what keeps the kubelet from knowing the resource, as it is logged; empty: nothing, as far as is known
	Held       string // why the resource is held back; empty: it is not
	Conflict   bool   // another plugin serves the name, as far as the kubelet shows it
}

// Status returns how the endpoint stands with the kubelet.
func (e *Endpoint) Status() Status {
	var s Status
	if p := e.status.Load(); p != nil {
		s = *p
	}
	s.Conflict = s.Conflict || s.Held != ""
	if s.Connected = s.Held == "" && e.streams.open(); s.Connected {
		s.Complaint = "" // it is about the next kubelet
	}
	return s
}

// Run serves the resource until ctx ends, registering with every kubelet that comes. started is called after the first
// look for one: by then the socket is there, if the kubelet's directory is. The error is one that no waiting will cure.
func (e *Endpoint) Run(ctx context.Context, started func()) error {
	defer e.probe.End()
	e.name = socketName(e.Resource.Name, time.Now())
	e.Log = e.Log.With("resource", e.Resource.Name)
	if path := e.path(); len(path) > socketPathSize {
		_, _, err := listen(path)
		return err
	}
	e.streams.changed = make(chan struct{}, 1)
	e.server = e.newServer()
	defer e.close()
	removeStale(e.Dir, e.Resource.Name)
	started = sync.OnceFunc(started)
	e.unheard, e.known = e.Restarted, e.Restarted
	if !e.wanted(ctx, started) {
		return nil
	}
	hints, stop := e.Watch.Subscribe()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hints:
		case <-e.streams.changed:
			e.tell()
		case answer := <-e.probe.Asked():
			answer()
			continue
		case <-timer.C:
		}
		wait := e.converge(ctx)
		started()
		timer.Stop()
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

// Alive returns once Run has gone round or has ended, or with the error of ctx. That may take as long as the kubelet
// may take to answer.
func (e *Endpoint) Alive(ctx context.Context) error {
	return e.probe.Alive(ctx, "endpoint of "+e.Resource.Name)
}

// wanted waits until an optional resource has a device; false if ctx has ended before. The kubelet that is there meanwhile
// hears of the endpoint before this one, so that the device does not wait for that.
func (e *Endpoint) wanted(ctx context.Context, started func()) bool {
	for e.Resource.Optional {
		snapshot, changed := e.Inventory.Snapshot()
		if len(snapshot.Offer(e.Resource.Name).Devices) > 0 {
			break
		}
		started()
		e.beHeardEarly(ctx)
		select {
		case <-changed:
		case answer := <-e.probe.Asked():
			answer()
		case <-ctx.Done():
			return false
		}
	}
	e.firstSeen = time.Now()
	return true
}

func (e *Endpoint) path() string { return filepath.Join(e.Dir, e.name) }

// converge does what is missing for the kubelet to know our devices, and returns after what time to look again if no
// hint comes; 0: not at all.
func (e *Endpoint) converge(ctx context.Context) time.Duration {
	if err := e.ensureSocket(); err != nil {
		e.complain("endpoint not listening", err)
		return backstop
	}
	kubelet := e.look()
	if kubelet == (identity{}) {
		e.complain("waiting for the kubelet", e.absent())
		return backstop
	}
	if e.rivalry.hold != nil {
		if wait := e.reconsider(ctx, kubelet); wait > 0 {
			return wait
		}
	}
	switch {
	case e.streams.open() && kubelet == e.registered:
		return e.compare(ctx, kubelet)
	case e.streams.open():
		return e.replaced(kubelet)
	case kubelet == e.registered && !e.streams.everSince(e.since):
		if wait := streamLimit - time.Since(e.since); wait > 0 {
			return wait
		}
		if e.streams.adopt(e.since) {
			return 0
		}
	}
	e.afterStream(kubelet)
	if wait := time.Until(e.notBefore); wait > 0 {
		return wait
	}
	if wait := e.precheck(ctx, kubelet); wait > 0 {
		return wait
	}
	return e.register(ctx, kubelet)
}

// ensureSocket makes our socket, also when somebody has removed it: always at the same path, which is where the kubelet
// looks for it.
func (e *Endpoint) ensureSocket() error {
	if e.listener != nil && socketIdentity(e.path()).sameFile(e.own) {
		return nil
	}
	if e.listener != nil {
		e.Log.Debug("own socket gone", "endpoint", e.name)
		e.drop()
	}
	// That it comes and goes is a hint to look again, and would be the next one's reason.
	if e.unreachable != nil && time.Since(e.unreached) < backstop {
		return e.unreachable
	}
	l, own, err := listen(e.path())
	if err != nil {
		e.Watch.Rearm()
		return err
	}
	e.listener, e.own, e.unreachable = l, own, nil
	bounded := &clients{UnixListener: l, kubelet: e.streams.expected, log: e.Log}
	go e.server.Serve(bounded) // returns when the listener or the server is closed
	return e.checkOwn()
}

// look notes which kubelet.sock is there.
func (e *Endpoint) look() identity {
	kubelet := socketIdentity(filepath.Join(e.Dir, kubeletSocket))
	if kubelet != e.seen {
		if e.looked { // it came after us, and knows of no other
			e.known, e.unheard = false, false
		}
		e.pause, e.notBefore = 0, time.Time{}
		e.seen, e.firstSeen = kubelet, time.Now()
	}
	e.looked = true
	return kubelet
}

// absent tells why there is no kubelet to register with.
func (e *Endpoint) absent() error {
	path := filepath.Join(e.Dir, kubeletSocket)
	if _, err := os.Lstat(path); err != nil {
		return fmt.Errorf("look for %s: %w", path, plainCause(err))
	}
	return fmt.Errorf("look for %s: what is there is no socket", path)
}

// complain logs an error once, not at every attempt, and has whoever asks hear it until the kubelet knows the resource. A
// missing directory is normal before the kubelet's first start.
func (e *Endpoint) complain(message string, err error) {
	if err.Error() == e.complaint {
		return
	}
	e.complaint = err.Error()
	e.standing.Complaint = message + ": " + e.complaint
	e.stands()
	level := slog.LevelWarn
	if errors.Is(err, fs.ErrNotExist) {
		level = slog.LevelInfo
	}
	e.Log.Log(context.Background(), level, message, "err", err)
}

// setRegistered notes whether the kubelet knows the resource; if it does, there is nothing to complain about.
func (e *Endpoint) setRegistered(registered bool) {
	e.standing.Registered = registered
	if registered {
		e.complaint, e.standing.Complaint = "", ""
	}
	e.stands()
}

// stands tells how the endpoint stands now.
func (e *Endpoint) stands() {
	status := e.standing
	e.status.Store(&status)
	e.tell()
}

func (e *Endpoint) tell() {
	if e.Changed != nil {
		e.Changed()
	}
}

// close ends the service. The socket is removed if it is still ours; the kubelet sees its stream end.
func (e *Endpoint) close() {
	e.server.Stop()
	e.drop()
}

// drop gives up our socket, so that a new one can be made.
func (e *Endpoint) drop() {
	if e.listener != nil {
		unlisten(e.listener, e.path(), e.own)
		e.listener = nil
	}
}
