// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/internal/clients"
)

// If two plugins serve the same resource name, the kubelet requests devices from the plugin that registered last, but accepts
// lists from both. The kubelet keeps the first plugin's stream open, so the first plugin does not notice the second one. Before
// Kubernetes 1.37, the end of any stream for the name disconnects the plugin that registered last (kubernetes v1.36
// pkg/kubelet/cm/devicemanager, plugin/v1beta1/handler.go, runClient). Since 1.37, the kubelet uses the last list as long as any
// stream for the name is open (v1.37, manager.go, PluginDisconnected).
//
// If the resource must yield to other plugins ([Resource].Yields), the endpoint therefore asks the kubelet which devices it counts
// before it registers. After each event from another plugin, the endpoint asks again. These facts are evidence:
//
//	fact                                              conclusion
//	the kubelet counts devices, and no stream of      another plugin serves the resource, unless the kubelet has not processed
//	this endpoint is open                             the end of an earlier stream yet
//	the kubelet counts a device of another plugin     another plugin has registered later
//	the checkpoint has a container with a device      another plugin has registered later, perhaps with the same device IDs
//	from another plugin
//	the kubelet counts no device, although it has     the kubelet has disconnected this endpoint together with the plugin that
//	processed a list, and another plugin has ended    has ended
//	the kubelet calls Allocate                        this endpoint serves the resource
//	kubelet.sock is a new file                        the kubelet has restarted, and knows no plugin
//	a connection to another plugin's socket ends      that plugin has ended, but its resource is unknown
//	the checkpoint is replaced                        the kubelet has processed a list or an allocation of any plugin
//
// If another plugin serves the name, the endpoint holds the resource back. If the other plugin registered after the endpoint did,
// the endpoint keeps its own stream open but sends nothing on this stream. The endpoint registers the resource when the other
// plugin has ended.
const (
	// queryDelay is the time between an event and the query about it, and between two queries that must have the same answer.
	// During queryDelay, the kubelet can process a list or the end of a stream.
	queryDelay = 300 * time.Millisecond
	// firstSettleQuery is the time between the first two queries before a registration. The time doubles with each query.
	firstSettleQuery = 10 * time.Millisecond
	// returnPause is how long another plugin may take to restart before the endpoint registers.
	returnPause = time.Second
	// kubeletGrace is how long the other plugin may take to register with a restarted kubelet. A widely used plugin, which
	// polls for a new kubelet.sock, took 5.9 s.
	kubeletGrace = 10 * time.Second
	// heldInterval is the time between two queries while the resource is held back and no event arrives. No event reports the
	// end of a plugin whose socket is outside the kubelet's directory.
	heldInterval = time.Minute
)

// conflictState is what an endpoint knows about other plugins that register the same resource name.
type conflictState int

const (
	alone            conflictState = iota // no other plugin serves the resource
	suspected                             // the last answer shows another plugin, and the next answer must confirm it
	held                                  // another plugin serves the resource
	pluginEnded                           // the same, but a plugin has ended, and may return until the deadline
	kubeletRestarted                      // the same, but the kubelet has restarted, and the plugin may register until the deadline
)

// conflict contains the evidence for the state. Only the goroutine that runs [Endpoint.Run] may access these fields. The exception
// is the field "asked", which any goroutine may set.
type conflict struct {
	e       *Endpoint
	asked   atomic.Bool // the kubelet has requested devices from this endpoint while the resource was held back
	state   conflictState
	suspect string            // what the last answer shows, while the state is suspected
	next    time.Time         // time of the next query, or zero if only an event triggers one
	events  int               // number of events from other plugins that have triggered a query
	ended   int               // number of plugins that had ended when this endpoint registered, or at the last deadline
	given   map[string]string // containers that had another plugin's device when this endpoint registered; values are IDs

	// These fields are used while the resource is held back.
	kubelet  identity
	plugin   int       // number of the newest plugin when the hold began, or 0; this is probably the other plugin
	deadline time.Time // end of the time that the other plugin has to return, or zero
}

// isHeld reports whether the resource is held back.
func (c *conflict) isHeld() bool { return c.state >= held }

// forget discards the evidence for another plugin. forget records the plugins that have already ended, and the containers that
// already have devices from another plugin, because these do not prove anything later.
func (c *conflict) forget() {
	c.state, c.next = alone, time.Time{}
	_, c.ended, _ = c.e.Watch.otherPlugins()
	c.given, _ = kubelet.GivenByOthers(c.e.Dir, c.e.Resource.Name, c.e.Resource.Variable)
}

// precheck asks the kubelet which devices it counts. precheck returns the delay until the next check, or 0 if the endpoint should
// register now. If the kubelet knew an earlier endpoint, it counts that endpoint's devices until it has processed the end of the
// stream. An earlier registration would fail, because the kubelet would disconnect the new stream (kubernetes issue 121994).
func (c *conflict) precheck(ctx context.Context, sock identity) time.Duration {
	e, k := c.e, &c.e.kubelet
	if !k.known && !e.Resource.Yields {
		return c.unpark()
	}
	counted, err := e.Counted(ctx)
	live, _, _ := e.Watch.otherPlugins()
	if k.settling.IsZero() {
		k.settling = time.Now()
	}
	waited := time.Since(k.settling)
	switch {
	case err == nil && len(counted) == 0, err != nil && len(live) == 0 && (!k.known || waited >= queryDelay):
		return c.unpark()
	case waited < queryDelay, err != nil && time.Since(k.since) < connectTimeout:
		wait := max(waited, firstSettleQuery)
		k.notBefore = time.Now().Add(wait)
		return wait
	case !e.Resource.Yields:
		return c.unpark()
	case err != nil:
		return e.retryLater(fmt.Errorf("ask the kubelet which plugin serves %s: %w; see paths.pod_resources, or set takeover = true "+
			"in a [[resource]] of that name", e.Resource.Name, err))
	}
	return c.holdBack(sock, "the kubelet counts "+counted[0])
}

// schedule schedules a query if another plugin has started, has ended or may have sent a list.
func (c *conflict) schedule(events int) {
	soon := time.Now().Add(queryDelay)
	if events != c.events && (c.next.IsZero() || soon.Before(c.next)) {
		c.next = soon
	}
	c.events = events
}

// askIn schedules the next query after the given delay, and returns the delay.
func (c *conflict) askIn(wait time.Duration) time.Duration {
	c.next = time.Now().Add(wait)
	return wait
}

// compare checks whether another plugin serves the resource. After an event from another plugin, compare queries the kubelet's
// device list and reacts to the answer. compare returns the delay until the next query, or 0 to wait for an event. The endpoint's
// stream must be open.
func (c *conflict) compare(ctx context.Context, sock identity) time.Duration {
	e := c.e
	_, ended, events := e.Watch.otherPlugins()
	if c.schedule(events); c.next.IsZero() {
		return 0
	}
	if wait := time.Until(c.next); wait > 0 {
		return wait
	}
	sent, checkpoint := e.streams.lastSent(), e.checkpoint()
	counted, err := e.Counted(ctx)
	if c.next = (time.Time{}); err != nil {
		return c.askIn(checkInterval)
	}
	if id := c.givenNow(); id != "" {
		return c.holdBack(sock, fmt.Sprintf("the kubelet gave %s to a pod", id))
	}
	shows, foreign, disconnected := "", e.Foreign(counted), ended != c.ended && len(counted) == 0 && sent.healthy
	switch {
	case foreign != "":
		shows = "the kubelet counts " + foreign
	case disconnected && checkpoint == sent.checkpoint: // the kubelet has not processed the list yet
		c.state = alone
		return c.askIn(queryDelay)
	case disconnected:
		// The text contains the number of the list, so only a second answer about the same list confirms it.
		shows = fmt.Sprintf("the kubelet counts no device, although device list %d contains devices", sent.number)
	default:
		c.state = alone
		return 0
	}
	if c.state != suspected || c.suspect != shows {
		c.state, c.suspect = suspected, shows
		return c.askIn(queryDelay)
	}
	if foreign != "" {
		return c.holdBack(sock, shows)
	}
	e.Log.Warn("registration repeated", "err", errors.New("the kubelet counts no device of the resource"))
	c.state = alone
	e.streams.closeAll()
	return settlePause
}

// checkpoint returns the identity of the kubelet's checkpoint file. The kubelet replaces this file after it has processed
// a list (kubernetes v1.36 pkg/kubelet/cm/devicemanager, manager.go, genericDeviceUpdateCallback).
func (e *Endpoint) checkpoint() identity {
	return identityOf(filepath.Join(e.Dir, checkpoint.File), syscall.S_IFREG)
}

// givenNow returns a device that another plugin has given to a container since this endpoint registered, or "". givenNow finds
// the device even if one of the endpoint's own devices has the same ID, which would hide the other plugin in the kubelet's list.
func (c *conflict) givenNow() string {
	given, err := kubelet.GivenByOthers(c.e.Dir, c.e.Resource.Name, c.e.Resource.Variable)
	for container, id := range given {
		if _, before := c.given[container]; !before && err == nil {
			return id
		}
	}
	return ""
}

// Foreign returns the ID of a device that the kubelet counts for the resource but the endpoint does not have. If there is no such
// device, Foreign returns "".
func (e *Endpoint) Foreign(counted []string) string {
	snapshot, _ := e.Inventory.Snapshot()
	offer := snapshot.Offer(e.Resource.Name)
	if i := slices.IndexFunc(counted, func(id string) bool { return e.Resource.find(offer, id) == nil }); i >= 0 {
		return counted[i]
	}
	return ""
}

// holdBack starts to hold back the resource, and returns the delay until the next check.
func (c *conflict) holdBack(sock identity, shows string) time.Duration {
	e := c.e
	live, ended, _ := e.Watch.otherPlugins()
	c.kubelet, c.plugin, c.ended = sock, newest(live), ended
	c.asked.Store(false)
	e.kubelet.settling = time.Time{}
	e.streams.setSilent(true)
	if err := e.Parked.park(e.Resource.Name, e.streams.client()); err != nil {
		e.Log.Warn("stream not stored", "err", fmt.Errorf("a restart of metalplugd may disconnect the other plugin: %w", err))
	}
	c.setHeld(held, time.Time{}, shows)
	e.Log.Warn("resource held back", "reason", e.lastStatus().Held,
		"remedy", "stop the other plugin; if that does not help, set takeover = true in a [[resource]] of that name")
	return c.askIn(heldInterval)
}

// setHeld changes the state while the resource is held back, and the reason in the status.
func (c *conflict) setHeld(state conflictState, deadline time.Time, shows string) {
	c.state, c.deadline = state, deadline
	c.e.set(func(s *api.Registration) {
		*s = api.Registration{Held: fmt.Sprintf("another plugin serves %s: %s", c.e.Resource.Name, shows)}
	})
}

// reconsider checks whether the resource must still be held back. The hold ends if the kubelet has requested devices from this
// endpoint. After a plugin has ended or the kubelet has restarted, the hold also ends if the other plugin does not register before
// the deadline. The result is the delay until the next check, or 0 if the resource is no longer held back.
func (c *conflict) reconsider(ctx context.Context, sock identity) time.Duration {
	e := c.e
	if c.asked.Swap(false) && e.streams.client() != nil {
		e.Parked.drop(e.Resource.Name)
		c.forget()
		c.notHeld()
		e.setRegistered(true)
		return 0
	}
	live, ended, events := e.Watch.otherPlugins()
	c.schedule(events)
	if sock != c.kubelet {
		if !e.Resource.Yields {
			return c.release()
		}
		e.Parked.drop(e.Resource.Name)
		c.kubelet = sock
		c.askIn(queryDelay)
		c.setHeld(kubeletRestarted, time.Now().Add(kubeletGrace),
			fmt.Sprintf("this was before the kubelet restarted, and metalplug takes over unless that plugin registers within %v", kubeletGrace))
	}
	if ended != c.ended && c.state != kubeletRestarted {
		c.state, c.deadline = pluginEnded, time.Now().Add(returnPause)
		c.next = c.deadline
	}
	c.ended = ended
	if wait := time.Until(c.next); wait > 0 {
		return wait
	}
	counted, err := e.Counted(ctx)
	expired := !c.deadline.IsZero() && time.Until(c.deadline) <= 0
	switch {
	case err != nil:
		return c.askIn(checkInterval)
	case c.state == kubeletRestarted && len(counted) > 0:
		c.plugin = newest(live)
		c.setHeld(held, time.Time{}, "the kubelet counts "+counted[0])
	case (expired || c.state == held && len(live) == 0) && len(counted) == 0, expired && c.hasOldList(live):
		return c.release()
	case expired:
		if c.state, c.deadline = held, (time.Time{}); !slices.Contains(live, c.plugin) { // the other plugin has restarted
			c.plugin = newest(live)
		}
	case c.state != held:
		return c.askIn(max(time.Until(c.deadline), connectInterval))
	}
	return c.askIn(heldInterval)
}

// hasOldList reports whether the kubelet still counts the last list from the other plugin, although that plugin has ended.
// Since Kubernetes 1.37, the kubelet counts that list as long as the endpoint's stream is open.
func (c *conflict) hasOldList(live []int) bool {
	open := c.e.streams.client() != nil || c.e.Parked.has(c.e.Resource.Name)
	return open && c.plugin != 0 && newest(live) <= c.plugin && !slices.Contains(live, c.plugin)
}

// release ends the hold after the other plugin has ended. release returns the delay before the registration.
func (c *conflict) release() time.Duration {
	k := &c.e.kubelet
	k.registered, k.pause, k.notBefore = identity{}, 0, time.Time{}
	wait := c.unpark()
	c.notHeld()
	return wait
}

func (c *conflict) notHeld() {
	c.state, c.next, c.deadline = alone, time.Time{}, time.Time{}
	c.e.streams.setSilent(false)
	c.e.set(func(s *api.Registration) { *s = api.Registration{} })
	c.e.Log.Info("resource no longer held back")
}

// unpark closes the endpoint's stream and the parked connection of an earlier endpoint. The result is the time that the kubelet
// needs to process the end of these connections, or 0 if none was open.
func (c *conflict) unpark() time.Duration {
	open := c.e.streams.client() != nil
	if !c.e.Parked.drop(c.e.Resource.Name) && !open {
		return 0
	}
	if open {
		c.e.streams.closeAll()
	}
	c.e.kubelet.notBefore = time.Now().Add(settlePause)
	return settlePause
}

// newest returns the number of the newest plugin in the list "live", or 0 if the list is empty.
func newest(live []int) int {
	if len(live) == 0 {
		return 0
	}
	return live[len(live)-1]
}

// Parked keeps a connection from the kubelet open while another plugin serves the resource. The connection stays open even after
// the endpoint has ended. Before Kubernetes 1.37, the kubelet would take the end of this connection for the end of the other
// plugin. The service manager keeps a copy of the descriptor for the next process. The methods of Parked are safe for concurrent
// use. The zero value holds no connection.
type Parked struct {
	Store  func(name string, f *os.File) error // passes a copy to the service manager
	Remove func(name string) error             // makes the service manager close its copy

	mu    sync.Mutex
	files map[string]*os.File // keys are the names in the service manager
}

// parkedPrefix is the prefix of all connection names.
const parkedPrefix = "held-"

// Take takes over the descriptors that an earlier process stored in the service manager.
func (p *Parked) Take(passed map[string]*os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files = make(map[string]*os.File)
	for name, f := range passed {
		if strings.HasPrefix(name, parkedPrefix) {
			p.files[name] = f
		}
	}
}

// park keeps a resource's connection open, unless c is nil. The error means that the service manager cannot store a copy.
func (p *Parked) park(resource string, c *clients.Client) error {
	if p.Store == nil || c == nil {
		return nil
	}
	f, err := c.Conn.(*net.UnixConn).File()
	if err != nil {
		return nil // the connection has ended
	}
	p.drop(resource)
	p.mu.Lock()
	defer p.mu.Unlock()
	name := parkedPrefix + resourceHash(resource)
	p.files[name] = f
	return p.Store(name, f)
}

// drop closes a resource's parked connection, and reports whether there was one.
func (p *Parked) drop(resource string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := parkedPrefix + resourceHash(resource)
	f := p.files[name]
	if f == nil {
		return false
	}
	f.Close()
	delete(p.files, name)
	_ = p.Remove(name) // Remove fails only if nothing was stored
	return true
}

// has reports whether a resource's connection is parked.
func (p *Parked) has(resource string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files[parkedPrefix+resourceHash(resource)] != nil
}
