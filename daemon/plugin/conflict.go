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
// After each event from another plugin, an endpoint therefore asks the kubelet which devices it counts. If the resource must
// yield to other plugins ([Resource].Yields), the endpoint also asks before it registers. If another plugin serves the name, the
// endpoint holds the resource back instead of registering it. If the other plugin registered after the endpoint did, the endpoint
// keeps its own stream open but sends nothing on this stream. The endpoint registers the resource when the other plugin has
// ended.
const (
	// minQueryInterval is the minimum time between an answer and the next query.
	minQueryInterval = 100 * time.Millisecond
	// confirmDelay is the delay before a second query, which must confirm the answer to the first one. During confirmDelay, the
	// kubelet can process a list or the end of a stream.
	confirmDelay = 300 * time.Millisecond
	// lateConfirmDelay replaces confirmDelay while the kubelet may still be processing the last list or the end of an earlier
	// stream.
	lateConfirmDelay = time.Second
	// retryDelay is the delay before the next query if the last one got no answer.
	retryDelay = 10 * time.Second
	// returnPause is how long another plugin may take to restart before the endpoint registers.
	returnPause = time.Second
	// kubeletGrace is how long the other plugin may take to register with a restarted kubelet. A widely used plugin, which
	// polls for a new kubelet.sock, took 5.9 s.
	kubeletGrace = 10 * time.Second
	// heldInterval is the time between two queries while the resource is held back and no event arrives.
	heldInterval = time.Minute
	// registerAgainAfter is the minimum time between two registrations that are caused by answers from the kubelet.
	// registerAgainAfter does not apply after another plugin has ended.
	registerAgainAfter = time.Minute
)

// conflict contains what an endpoint knows about another plugin that registers the same resource name. Only the goroutine that
// runs [Endpoint.Run] may access these fields. The exception is the field "asked", which any goroutine may set.
type conflict struct {
	e            *Endpoint
	asked        atomic.Bool       // the kubelet has requested devices from this endpoint while the resource was held back
	last         time.Time         // time of the last answer
	next         time.Time         // time of the next query, or zero if only an event triggers one
	events       int               // number of events from other plugins before the last query
	suspect      string            // evidence of another plugin in the last answer; the next answer must confirm it
	given        map[string]string // containers that had another plugin's device when this endpoint registered; values are IDs
	reregistered time.Time         // time of the last registration that an answer caused
	ended        int               // number of plugins that had ended at that registration
	hold         *hold             // nil if the resource is not held back
}

// hold contains what the endpoint knows about the other plugin while the resource is held back.
type hold struct {
	kubelet identity
	// restarted is set if the kubelet has restarted and has not counted the other plugin's devices since then.
	restarted      bool
	plugin         int       // number of the newest plugin when the hold began, or 0; this is probably the other plugin
	ended          int       // number of plugins that have ended so far
	returnDeadline time.Time // deadline for the other plugin to return, or zero if no plugin has ended
}

// forget discards the evidence for another plugin. forget records the containers that already have devices from another plugin,
// because they do not prove that this plugin is still running.
func (c *conflict) forget() {
	c.suspect, c.next = "", time.Time{}
	c.given, _ = kubelet.GivenByOthers(c.e.Dir, c.e.Resource.Name, c.e.Resource.Variable)
}

// precheck asks the kubelet whether another plugin serves the resource. precheck returns the delay until the next check, or 0 if
// the endpoint should register now.
func (c *conflict) precheck(ctx context.Context, sock identity) (wait time.Duration) {
	e := c.e
	if !e.Resource.Yields || e.Counted == nil {
		return c.unpark()
	}
	counted, err := e.Counted(ctx)
	live, _, _ := e.Watch.otherPlugins()
	switch {
	case errors.Is(err, kubelet.ErrNotCounted), err == nil && len(counted) == 0, err != nil && len(live) == 0:
		c.suspect = ""
		return c.unpark()
	case err != nil && time.Since(e.kubelet.since) < connectTimeout:
		wait = settlePause / 10
	case err != nil:
		return e.retryLater(fmt.Errorf("ask the kubelet which plugin serves %s: %w; see paths.pod_resources, or set takeover = true "+
			"in a [[resource]] of that name", e.Resource.Name, err))
	case c.suspect == "": // the kubelet may still have the list from an earlier endpoint
		c.suspect, wait = counted[0], confirmDelay
	default:
		return c.holdBack(sock, "the kubelet counts "+counted[0])
	}
	e.kubelet.notBefore = time.Now().Add(wait)
	return wait
}

// compare checks whether another plugin serves the resource. If another plugin has started, has ended or may have sent a
// list, compare queries the kubelet's device list and reacts to the answer. compare returns the delay until the next query, or 0
// to wait for an event. The endpoint's stream must be open.
func (c *conflict) compare(ctx context.Context, sock identity) time.Duration {
	e := c.e
	_, ended, events := e.Watch.otherPlugins()
	if events != c.events && c.suspect == "" {
		c.next = c.last.Add(minQueryInterval)
	}
	if e.Counted == nil || c.next.IsZero() {
		return 0
	}
	if wait := time.Until(c.next); wait > 0 {
		return wait
	}
	sent, processed := e.streams.lastSent(), e.checkpoint()
	counted, err := e.Counted(ctx)
	c.last, c.events, c.next = time.Now(), events, time.Time{}
	if errors.Is(err, kubelet.ErrNotCounted) {
		return 0
	}
	if err != nil {
		return c.askIn(retryDelay)
	}
	if id := c.givenNow(); id != "" {
		return c.holdBack(sock, fmt.Sprintf("the kubelet gave %s to a pod", id))
	}
	before, foreign := c.suspect, e.Foreign(counted)
	switch {
	case foreign != "":
		c.suspect = "the kubelet counts " + foreign
	case len(counted) == 0 && sent.healthy && (processed == sent.checkpoint || sent != e.streams.lastSent()):
		// The reason may be that the kubelet has not processed the last list yet.
		c.suspect = ""
		return c.askIn(lateConfirmDelay)
	case len(counted) == 0 && sent.healthy:
		// The text contains the number of the list, so only a second answer about the same list confirms it.
		c.suspect = fmt.Sprintf("the kubelet counts no device, although device list %d contains devices", sent.number)
	default:
		c.suspect = ""
		return 0
	}
	switch again := time.Until(c.reregistered.Add(registerAgainAfter)); {
	case c.suspect != before:
		return c.askIn(confirmDelay)
	case foreign != "":
		return c.holdBack(sock, c.suspect)
	case again > 0 && ended == c.ended:
		return c.askIn(again)
	}
	// The kubelet has mistaken the end of another plugin for the end of this endpoint.
	c.reregistered, c.ended, c.suspect = time.Now(), ended, ""
	e.Log.Warn("registration repeated", "err", errors.New("the kubelet counts no device of the resource"))
	e.streams.closeAll()
	return settlePause
}

// askIn schedules the next query after the given delay, and returns the delay.
func (c *conflict) askIn(wait time.Duration) time.Duration {
	c.next = time.Now().Add(wait)
	return wait
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
	c.hold = &hold{kubelet: sock, plugin: newest(live), ended: ended}
	c.suspect, c.next = "", time.Time{}
	c.asked.Store(false)
	e.streams.setSilent(true)
	if err := e.Parked.park(e.Resource.Name, e.streams.client()); err != nil {
		e.Log.Warn("stream not stored", "err", fmt.Errorf("a restart of metalplugd may disconnect the other plugin: %w", err))
	}
	c.setHeld(shows)
	e.Log.Warn("resource held back", "reason", e.lastStatus().Held,
		"remedy", "stop the other plugin; if that does not help, set takeover = true in a [[resource]] of that name")
	return heldInterval
}

func (c *conflict) setHeld(shows string) {
	c.e.set(func(s *api.Registration) {
		*s = api.Registration{Held: fmt.Sprintf("another plugin serves %s: %s", c.e.Resource.Name, shows)}
	})
}

// reconsider checks whether the resource must still be held back. The hold ends if the kubelet has requested devices from this
// endpoint. After the other plugin has ended or the kubelet has restarted, the hold also ends if the other plugin does not
// register in time. The result is the delay until the next check, or 0 if the resource is no longer held back.
func (c *conflict) reconsider(ctx context.Context, sock identity) time.Duration {
	e, h := c.e, c.hold
	if c.asked.Swap(false) && e.streams.client() != nil {
		e.Parked.drop(e.Resource.Name)
		c.forget()
		c.notHeld()
		e.setRegistered(true)
		return 0
	}
	if sock != h.kubelet {
		if !e.Resource.Yields {
			return c.release()
		}
		e.Parked.drop(e.Resource.Name)
		h.kubelet, h.restarted, h.returnDeadline = sock, true, time.Now().Add(kubeletGrace)
		c.setHeld(fmt.Sprintf("this was before the kubelet restarted, and metalplug takes over unless that plugin registers within %v", kubeletGrace))
	}
	if wait := time.Until(c.last.Add(minQueryInterval)); wait > 0 {
		return wait
	}
	counted, err := e.Counted(ctx)
	if c.last = time.Now(); err != nil {
		return checkInterval
	}
	live, ended, _ := e.Watch.otherPlugins()
	if h.restarted && len(counted) > 0 {
		h.restarted, h.plugin, h.returnDeadline = false, newest(live), time.Time{}
		c.setHeld("the kubelet counts " + counted[0])
	}
	back := c.last.Add(returnPause)
	if noPlugin := h.returnDeadline.IsZero() && len(live) == 0 && len(counted) == 0; (noPlugin || ended != h.ended) && h.returnDeadline.Before(back) {
		h.returnDeadline = back
	}
	h.ended = ended
	if h.returnDeadline.IsZero() {
		return heldInterval
	}
	if wait := time.Until(h.returnDeadline); wait > 0 {
		return wait
	}
	if len(counted) == 0 || c.hasOldList(live) {
		return c.release()
	}
	if h.returnDeadline = (time.Time{}); !slices.Contains(live, h.plugin) { // the other plugin has restarted
		h.plugin = newest(live)
	}
	return heldInterval
}

// hasOldList reports whether the kubelet still counts the last list from the other plugin, although that plugin has ended.
// Since Kubernetes 1.37, the kubelet counts that list as long as the endpoint's stream is open.
func (c *conflict) hasOldList(live []int) bool {
	open := c.e.streams.client() != nil || c.e.Parked.has(c.e.Resource.Name)
	return open && c.hold.plugin != 0 && newest(live) <= c.hold.plugin && !slices.Contains(live, c.hold.plugin)
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
	c.hold = nil
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
	c.e.kubelet.notBefore = time.Now().Add(restartPause)
	return restartPause
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
