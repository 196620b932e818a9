// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// Two plugins may serve one name. The kubelet asks the one that registered last for devices, takes the lists of both, and
// keeps the stream of the first open, which therefore learns nothing. Before 1.37 the end of any stream of a name cuts
// off the plugin that registered last (kubernetes v1.36 pkg/kubelet/cm/devicemanager, plugin/v1beta1/handler.go,
// runClient). From 1.37 on the kubelet counts the last list as long as any stream of the name is open (v1.37, manager.go,
// PluginDisconnected).
//
// So an endpoint asks the kubelet for its count before it registers a resource that yields, and after each event of
// [Peers]. A device that was never in our list belongs to another plugin, and the resource is held back. The endpoint
// does not register it, or if the other plugin came later, our stream stays open and silent. The endpoint registers it
// once a plugin has ended and the kubelet counts nothing. If a plugin ends whose devices are all unhealthy, its end is
// the only sign.
//
// A resource that does not yield is registered again once the other plugin has ended.
const (
	// askPause is the least time between two questions.
	askPause = 100 * time.Millisecond
	// askAgain is when to ask again before an answer counts. A list, or the end of a stream, may be under way.
	askAgain = 300 * time.Millisecond
	// returnPause is how long a plugin that has ended may take to restart before ours is registered.
	returnPause = time.Second
	// kubeletGrace is how long the other plugin may take to register with a kubelet that has restarted. A common one that polls
	// took 5.9 s.
	kubeletGrace = 10 * time.Second
	// heldInterval is how often to ask without an event while the resource is held back.
	heldInterval = time.Minute
	// lateEnd is how long, and lateInterval how often, to ask after a second registration. The kubelet may deal with the
	// end of the first stream after it.
	lateEnd      = 4 * time.Second
	lateInterval = time.Second
	// registerAgainAfter is the least time between two registrations because of an answer, unless a plugin has ended.
	registerAgainAfter = time.Minute
)

// finding is how an answer of the kubelet compares with our list.
type finding int

const (
	ours    finding = iota // it counts nothing that was not in our list
	foreign                // it counts another device, so another plugin serves the name
	nothing                // it has worked through our list, which has healthy devices, and counts nothing, so it takes the endpoint for ended
	over                   // it counts our devices, after it counted others
	same                   // it counts our devices, and a container has one from another plugin, so that plugin has the same devices
)

// conflict is what an endpoint knows of another plugin with its name. Run owns it, except for asked.
type conflict struct {
	e         *Endpoint
	asked     atomic.Bool       // the kubelet has asked us for devices during a conflict. Run takes it
	at        time.Time         // time of the last question
	events    uint64            // Peers.Events before that question
	again     time.Duration     // when to ask without an event, or 0 for never
	late      bool              // the kubelet may deal with the end of an earlier stream
	suspect   finding           // of the last answer. The next one confirms it
	list      *inventory.Offer  // what was sent last before that answer
	given     map[string]string // containers that had devices of another plugin when this endpoint registered
	contested finding           // how another plugin shows that offers a resource that does not yield, or ours
	taken     time.Time         // time of the last registration because of an answer
	ended     uint64            // Peers.Ended at that time
	hold      *hold             // nil if the resource is not held back
}

// begin forgets what belongs to an earlier registration. A kubelet that has known an endpoint may deal with its end after this, in
// spite of all pauses.
func (c *conflict) begin(known bool) {
	c.suspect, c.again, c.late = ours, 0, known
	if known {
		c.again, c.at = lateInterval, time.Now()
	}
	c.forget()
}

// forget leaves out of account what another plugin has given to containers so far.
func (c *conflict) forget() {
	c.given, _ = kubelet.GivenByOthers(c.e.Dir, c.e.Resource.Name, c.e.Resource.Variable)
}

// precheck asks the kubelet whether another plugin serves the resource. It returns when to look again, or 0 to register.
func (c *conflict) precheck(ctx context.Context, sock identity) time.Duration {
	e := c.e
	if !e.Resource.Yields || e.Counted == nil {
		return c.unpark()
	}
	counted, err := e.Counted(ctx)
	switch {
	case errors.Is(err, kubelet.ErrNotCounted), err == nil && len(counted) == 0, err != nil && len(e.Peers.Live()) == 0:
		c.suspect = ours
		return c.unpark()
	case err != nil && time.Since(e.kubelet.since) < eager:
		e.kubelet.notBefore = time.Now().Add(settlePause / 10)
		return settlePause / 10
	case err != nil:
		return e.again(fmt.Errorf("ask the kubelet which plugin serves %s: %w; see paths.pod_resources, or set takeover = true "+
			"in a [[resource]] of that name", e.Resource.Name, err))
	case c.suspect != foreign: // it may be the list of our last endpoint
		c.suspect = foreign
		e.kubelet.notBefore = time.Now().Add(askAgain)
		return askAgain
	}
	return c.holdBack(sock, foreign, counted[0])
}

// sendAgain sends our list, and asks only once the kubelet has had it.
func (c *conflict) sendAgain() {
	c.at, c.events, c.again, c.suspect = time.Now(), c.e.Peers.Events(), askAgain, ours
	c.forget()
	c.e.streams.repeat()
}

// compare asks for the kubelet's count if another plugin has come, has ended or may have sent a list, and acts on the
// answer. It returns when to ask again, or 0 for the next event. Our stream is open.
func (c *conflict) compare(ctx context.Context, sock identity) time.Duration {
	e := c.e
	if c.asked.Swap(false) && c.contested != ours { // the list of the other came after ours
		c.setContested(ours)
		c.sendAgain()
	}
	events := e.Peers.Events()
	news := events != c.events
	if e.Counted == nil || !news && c.again == 0 {
		return 0
	}
	if news { // another plugin may be about to send its list, and ours after it would hide it
		e.streams.mute(e.Resource.Yields)
	}
	pause := max(c.again, askPause)
	if news && c.suspect == ours {
		pause = askPause
	}
	if wait := time.Until(c.at.Add(pause)); wait > 0 {
		return wait
	}
	counted, err := e.Counted(ctx)
	c.at = time.Now()
	if err != nil {
		e.streams.mute(false)
		c.again = min(max(backstop, 2*c.again), heldInterval)
		if errors.Is(err, kubelet.ErrNotCounted) {
			c.late, c.suspect, c.events, c.again = false, ours, events, 0
		}
		return c.again
	}
	c.late = c.late && time.Since(e.kubelet.at) < lateEnd
	c.events, c.again = events, 0
	if c.late {
		c.again = lateInterval
	}
	found, id := c.find(counted)
	sent, before := e.streams.lastSent()
	if found == nothing && e.checkpoint() == before { // the kubelet has not worked through our list
		found, c.again = ours, lateInterval
	}
	// A list that was sent in between may be under way, too. A device that a container has needs no confirmation.
	confirmed := found == same || found == c.suspect && (found != nothing || sent[0] == c.list)
	c.suspect, c.list = found, sent[0]
	e.streams.mute((found == foreign || found == same) && e.Resource.Yields) // so that no list of ours hides the other's
	switch {
	case found == ours:
	case !confirmed:
		c.again = askAgain
	case found == nothing || found == over:
		return c.takeBack()
	case e.Resource.Yields:
		return c.holdBack(sock, found, id)
	default:
		c.suspect = ours
		if c.contested == ours {
			c.setContested(found)
			e.Log.Warn("another plugin offers the resource", "err", fmt.Errorf("%s; the kubelet asks only the one that has "+
				"registered last: end the other, or name the resource differently", c.reason(found, id)))
		}
	}
	return c.again
}

// takeBack registers again, because the kubelet asks another plugin or one that has ended. It returns after what time.
func (c *conflict) takeBack() time.Duration {
	ended := c.e.Peers.Ended()
	if wait := time.Until(c.taken.Add(registerAgainAfter)); ended == c.ended && wait > 0 {
		c.again = wait
		return wait
	}
	c.taken, c.ended, c.suspect, c.again = time.Now(), ended, ours, 0
	c.setContested(ours)
	c.e.Log.Warn("registering again", "err", fmt.Errorf("the kubelet asks another plugin for devices of the resource, or one that has ended"))
	c.e.streams.end()
	return settlePause
}

// setContested notes how another plugin shows that offers a resource that does not yield, or ours if none does.
func (c *conflict) setContested(found finding) {
	c.contested = found
	c.e.set(func(s *Status) { s.Conflict = found != ours })
}

// find compares what the kubelet counts with our lists, the newest and the last two that were sent, and what it has given to
// containers with what we have.
func (c *conflict) find(counted []string) (_ finding, example string) {
	e := c.e
	sent, _ := e.streams.lastSent()
	if id := e.Foreign(counted); id != "" {
		return foreign, id
	}
	if len(counted) == 0 && sent[0] != nil && slices.ContainsFunc(sent[0].Devices, func(s *inventory.Status) bool {
		return s.Healthy && len(e.Resource.outdated(s)) == 0
	}) {
		return nothing, ""
	}
	if c.contested == foreign {
		return over, ""
	}
	given, err := kubelet.GivenByOthers(e.Dir, e.Resource.Name, e.Resource.Variable)
	for container, id := range given {
		if _, before := c.given[container]; !before && err == nil {
			return same, id
		}
	}
	return ours, ""
}

// checkpoint returns the identity of the kubelet's checkpoint. The kubelet replaces the file after each list that it has worked
// through (kubernetes v1.36 pkg/kubelet/cm/devicemanager, manager.go, genericDeviceUpdateCallback).
func (e *Endpoint) checkpoint() identity {
	return identityOf(filepath.Join(e.Dir, kubelet.CheckpointFile), syscall.S_IFREG)
}

// Foreign returns the ID of a device that the kubelet counts for the resource and that is neither in the newest list nor
// in one of the last two that were sent, or "".
func (e *Endpoint) Foreign(counted []string) string {
	snapshot, _ := e.Inventory.Snapshot()
	sent, _ := e.streams.lastSent()
	lists := append(sent[:], snapshot.Offer(e.Resource.Name))
	for _, id := range counted {
		if !slices.ContainsFunc(lists, func(o *inventory.Offer) bool { return o != nil && e.Resource.find(o, id) != nil }) {
			return id
		}
	}
	return ""
}
