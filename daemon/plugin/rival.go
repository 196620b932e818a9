// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// Two plugins may serve one name. The kubelet asks the one that registered last for devices, takes the lists of both, and keeps
// the stream of the first open, which therefore learns nothing. Before 1.37 the end of any stream of a name cuts off the plugin
// that registered last (kubernetes v1.36 pkg/kubelet/cm/devicemanager, plugin/v1beta1/handler.go, runClient). From 1.37 on the
// kubelet counts the last list as long as any stream of the name is open (v1.37, manager.go, PluginDisconnected).
//
// So an endpoint asks what the kubelet counts before it registers a resource that yields, and after each event of [Peers]. A
// device that was never in our list belongs to another plugin, and the resource is held back: it is not registered, or if the
// other plugin came later, our stream stays open and silent. It is registered once a plugin has ended and the kubelet counts
// nothing. If a plugin ends whose devices are all unhealthy, that is the only sign.
//
// A resource that does not yield is registered again once the other plugin has ended.
const (
	// askPause is the least time between two questions.
	askPause = 100 * time.Millisecond
	// askAgain is when to ask again before an answer counts: a list, or the end of a stream, may be under way.
	askAgain = 300 * time.Millisecond
	// restartPause is how long a plugin that has ended may take to restart before ours is registered.
	restartPause = time.Second
	// kubeletGrace is how long the other plugin may take to register with a kubelet that has restarted. A common one that polls
	// took 5.9 s.
	kubeletGrace = 10 * time.Second
	// heldInterval is how often to ask without an event while the resource is held back.
	heldInterval = time.Minute
	// lateEnd is how long, and lateInterval how often, to ask after a second registration: the kubelet may deal with the end
	// of the first stream after it.
	lateEnd      = 4 * time.Second
	lateInterval = time.Second
	// registerAgainAfter is the least time between two registrations because of an answer, unless a plugin has ended.
	registerAgainAfter = time.Minute
)

// finding is how an answer of the kubelet compares with our list.
type finding int

const (
	ours    finding = iota // it counts nothing that was not in our list
	foreign                // it counts another device: another plugin serves the name
	nothing                // it counts nothing, and our list has healthy devices: it takes the endpoint for ended
	over                   // it counts our devices, after it counted others
)

// rivalry is what an endpoint knows of another plugin with its name. Run owns it.
type rivalry struct {
	asked     time.Time         // time of the last question
	events    uint64            // Peers.Events before that question
	again     time.Duration     // after what time to ask without an event; 0: never
	late      bool              // the kubelet may deal with the end of an earlier stream
	suspect   finding           // of the last answer; the next one confirms it
	list      *inventory.Offer  // what was sent last before that answer
	contested bool              // the resource does not yield, and another plugin serves its name
	same      bool              // it has devices with our IDs
	given     map[string]string // containers that had devices of another plugin when this endpoint registered
	taken     time.Time         // time of the last registration because of an answer
	ended     uint64            // Peers.Ended at that time
	hold      *hold             // nil: the resource is not held back
}

// hold is why a resource is held back.
type hold struct {
	kubelet identity
	rival   uint64    // most likely the other plugin: the newest when its devices were seen; 0: none
	ended   uint64    // Peers.Ended when a plugin was last seen to end
	end     time.Time // time of that end, until its consequence is known
	grace   time.Time // end of kubeletGrace; zero: this kubelet has counted devices of the other plugin
	same    bool      // it has devices with our IDs, so that what the kubelet counts proves nothing
}

// precheck asks the kubelet whether another plugin serves the resource. It returns after what time to look again; 0: register.
func (e *Endpoint) precheck(ctx context.Context, kubelet identity) time.Duration {
	if e.unheard {
		return 0
	}
	if !e.Resource.Yields || e.Counted == nil {
		return e.unpark()
	}
	counted, err := e.Counted(ctx)
	switch {
	case errors.Is(err, ErrNotCounted), err == nil && len(counted) == 0, err != nil && len(e.Peers.Live()) == 0:
		e.rivalry.suspect = ours
		return e.unpark()
	case err != nil && time.Since(e.firstSeen) < eager:
		e.notBefore = time.Now().Add(settlePause / 10)
		return settlePause / 10
	case err != nil:
		return e.again(fmt.Errorf("ask the kubelet which plugin serves %s: %w; see paths.pod_resources, or set takeover = true "+
			"in a [[resource]] of that name", e.Resource.Name, err))
	case e.rivalry.suspect != foreign: // it may be the list of our last endpoint
		e.rivalry.suspect = foreign
		e.notBefore = time.Now().Add(askAgain)
		return askAgain
	}
	return e.holdBack(kubelet, e.counts(counted[0]), false)
}

// holdBack begins to hold the resource back, and says why.
func (e *Endpoint) holdBack(kubelet identity, reason string, same bool) time.Duration {
	e.rivalry.suspect, e.rivalry.again = ours, 0
	e.rivalry.hold = e.newHold(kubelet)
	e.rivalry.hold.same = same
	e.asksUs.Store(false)
	e.streams.mute(true)
	if err := e.Parked.park(e.Resource.Name, e.streams.connections()); err != nil {
		e.Log.Warn("stream not stored", "err", fmt.Errorf("a restart may cut off the other plugin: %w", err))
	}
	e.complaint = ""
	e.standing = Status{Held: reason}
	e.stands()
	e.Log.Warn("resource held back", "reason", e.standing.Held,
		"remedy", "end the other plugin, or set takeover = true in a [[resource]] of that name")
	return heldInterval
}

// counts is why the resource is held back, for an example of what the kubelet counts.
func (e *Endpoint) counts(id string) string {
	return fmt.Sprintf("another plugin serves %s: the kubelet counts %s", e.Resource.Name, id)
}

func (e *Endpoint) newHold(kubelet identity) *hold {
	return &hold{kubelet: kubelet, rival: newest(e.Peers.Live()), ended: e.Peers.Ended()}
}

// reconsider asks whether the resource stays held back. It returns after what time to ask again; 0: it is not held back.
func (e *Endpoint) reconsider(ctx context.Context, kubelet identity) time.Duration {
	r := &e.rivalry
	if kubelet != r.hold.kubelet {
		e.Parked.drop(e.Resource.Name)
		r.hold = e.newHold(kubelet)
		r.hold.grace = time.Now().Add(kubeletGrace)
		e.standing.Held = fmt.Sprintf("another plugin served %s before the kubelet restarted; it has %v to register",
			e.Resource.Name, kubeletGrace)
		e.stands()
	}
	if wait := time.Until(r.asked.Add(askPause)); wait > 0 {
		return wait
	}
	counted, err := e.Counted(ctx)
	r.asked = time.Now()
	if err != nil {
		return backstop
	}
	open, h := e.streams.open(), r.hold
	found, _ := e.find(counted)
	switch {
	case open && (e.asksUs.Swap(false) || found == ours && len(counted) > 0 && !h.same): // or our last list was under way
		e.resume()
		return 0
	case len(counted) == 0 && !h.grace.IsZero():
		if wait := time.Until(h.grace); wait > 0 {
			return wait
		}
		return e.release()
	case !h.grace.IsZero():
		r.hold = e.newHold(kubelet)
		e.standing.Held = e.counts(counted[0])
		e.stands()
		return heldInterval
	}
	live, ended := e.Peers.Live(), e.Peers.Ended()
	if h.end.IsZero() && (ended != h.ended || len(live) == 0 && len(counted) == 0) {
		h.ended, h.end = ended, time.Now()
	}
	if h.end.IsZero() {
		return heldInterval
	}
	if wait := time.Until(h.end.Add(restartPause)); wait > 0 {
		return wait
	}
	h.end = time.Time{}
	// A kubelet from 1.37 counts the last list of the other plugin as long as our stream is open.
	leftover := (open || e.Parked.has(e.Resource.Name)) && h.rival != 0 && newest(live) <= h.rival && !slices.Contains(live, h.rival)
	if len(counted) == 0 || leftover {
		return e.release()
	}
	if !slices.Contains(live, h.rival) { // it has restarted
		h.rival = newest(live)
	}
	if ended != h.ended { // another one in between, whose consequence is not known yet
		h.ended, h.end = ended, time.Now()
		return restartPause
	}
	return heldInterval
}

// release ends the holding back after the other plugin has ended. It returns after what time to register.
func (e *Endpoint) release() time.Duration {
	e.registered, e.pause, e.notBefore = identity{}, 0, time.Time{}
	wait := e.unpark()
	if e.streams.open() {
		wait = 2 * settlePause
		e.notBefore = time.Now().Add(wait)
		e.streams.end()
	}
	e.notHeld()
	return wait
}

// resume ends the holding back where the kubelet asks us for devices. The stream stays open.
func (e *Endpoint) resume() {
	e.Parked.drop(e.Resource.Name)
	e.notHeld()
	e.sendAgain()
	e.setRegistered(true)
}

// sendAgain sends our list, and asks only once the kubelet has had it. What another plugin has given so far is of the past.
func (e *Endpoint) sendAgain() {
	r := &e.rivalry
	r.given, _ = givenByOthers(e.Dir, e.Resource.Name, e.Resource.Variable)
	r.asked, r.events, r.again, r.suspect = time.Now(), e.Peers.Events(), askAgain, ours
	e.streams.repeat()
}

func (e *Endpoint) notHeld() {
	e.rivalry.hold = nil
	e.streams.mute(false)
	e.standing = Status{}
	e.stands()
	e.Log.Info("resource no longer held back")
}

// unpark closes the connections of an earlier endpoint that were kept for the other plugin. It returns how long the kubelet
// needs to deal with their end; 0: there were none.
func (e *Endpoint) unpark() time.Duration {
	if !e.Parked.drop(e.Resource.Name) {
		return 0
	}
	e.notBefore = time.Now().Add(2 * settlePause)
	return 2 * settlePause
}

// compare asks what the kubelet counts if another plugin has come, has ended or may have sent a list, and does what follows.
// It returns after what time to ask again; 0: after the next event. Our stream is open.
func (e *Endpoint) compare(ctx context.Context, kubelet identity) time.Duration {
	r := &e.rivalry
	if e.asksUs.Swap(false) && r.contested { // the list of the other came after ours
		e.setContested(false)
		e.sendAgain()
	}
	events := e.Peers.Events()
	if e.Counted == nil || events == r.events && r.again == 0 {
		return 0
	}
	if events != r.events { // another plugin may be about to send its list: ours after it would hide it
		e.streams.mute(e.Resource.Yields)
	}
	pause := max(r.again, askPause)
	if events != r.events && r.suspect == ours {
		pause = askPause
	}
	if wait := time.Until(r.asked.Add(pause)); wait > 0 {
		return wait
	}
	counted, err := e.Counted(ctx)
	r.asked = time.Now()
	if err != nil {
		e.streams.mute(false)
	}
	if errors.Is(err, ErrNotCounted) {
		r.late, r.suspect, r.events, r.again = false, ours, events, 0
		return 0
	}
	if err != nil {
		r.again = min(max(backstop, 2*r.again), heldInterval)
		return r.again
	}
	r.late = r.late && time.Since(e.since) < lateEnd
	r.events, r.again = events, 0
	if r.late {
		r.again = lateInterval
	}
	found, id := e.find(counted)
	if id := r.overtaken(e.Dir, &e.Resource); id != "" && found == ours && !r.contested {
		return e.sameIDs(kubelet, id)
	}
	list := e.streams.lastSent()[0]
	// A list that was sent in between may be under way, too.
	confirmed := found == r.suspect && (found != nothing || list == r.list)
	r.suspect, r.list = found, list
	e.streams.mute(found == foreign && e.Resource.Yields) // so that no list of ours hides the other's
	switch {
	case found == ours:
	case !confirmed:
		r.again = askAgain
	case found == foreign && e.Resource.Yields:
		return e.holdBack(kubelet, e.counts(id), false)
	case found == foreign && !r.contested:
		e.setContested(true)
		e.Log.Warn("another plugin offers the resource", "err", fmt.Errorf("the kubelet counts %q, which is no device of ours: "+
			"it asks only the one that has registered last; end the other, or name the resource differently", id))
		r.suspect = ours
	case found == foreign:
		r.suspect = ours
	default:
		return e.takeBack()
	}
	return r.again
}

// overtaken returns a device that another plugin has given to a container since this endpoint registered; empty: there is none. It
// is the only sign of a plugin with our IDs.
func (r *rivalry) overtaken(dir string, of *Resource) string {
	given, err := givenByOthers(dir, of.Name, of.Variable)
	if err != nil {
		return ""
	}
	for container, id := range given {
		if _, before := r.given[container]; !before {
			return id
		}
	}
	return ""
}

// sameIDs deals with another plugin that has given one of our devices to a container.
func (e *Endpoint) sameIDs(kubelet identity, id string) time.Duration {
	gave := fmt.Sprintf("the kubelet has %s of it", id)
	if e.Resource.Yields {
		return e.holdBack(kubelet, fmt.Sprintf("another plugin serves %s: %s", e.Resource.Name, gave), true)
	}
	e.setContested(true)
	e.rivalry.same = true
	e.Log.Warn("another plugin offers the resource", "err", errors.New(gave))
	return 0
}

// takeBack registers again, because the kubelet asks another plugin or one that has ended. It returns after what time.
func (e *Endpoint) takeBack() time.Duration {
	r := &e.rivalry
	ended := e.Peers.Ended()
	if wait := time.Until(r.taken.Add(registerAgainAfter)); ended == r.ended && wait > 0 {
		r.again = wait
		return wait
	}
	r.taken, r.ended, r.suspect, r.again = time.Now(), ended, ours, 0
	e.setContested(false)
	e.Log.Warn("registering again", "err", fmt.Errorf("the kubelet asks another plugin for devices of the resource, or one that has ended"))
	e.streams.end()
	return settlePause
}

// setContested notes whether another plugin offers a resource that does not yield.
func (e *Endpoint) setContested(contested bool) {
	e.rivalry.contested, e.rivalry.same, e.standing.Conflict = contested, false, contested
	e.stands()
}

// find compares what the kubelet counts with our lists: the newest, and the last two that were sent.
func (e *Endpoint) find(counted []string) (_ finding, example string) {
	sent := e.streams.lastSent()
	if id := e.foreign(counted, sent[0], sent[1]); id != "" {
		return foreign, id
	}
	if len(counted) == 0 && sent[0] != nil && slices.ContainsFunc(sent[0].Devices, func(s *inventory.Status) bool {
		return s.Healthy && len(e.Resource.outdated(s)) == 0
	}) {
		return nothing, ""
	}
	if e.rivalry.contested && !e.rivalry.same {
		return over, ""
	}
	return ours, ""
}

// foreign returns a device that the kubelet counts and that is in none of the lists nor in the newest one; empty: there is none.
func (e *Endpoint) foreign(counted []string, lists ...*inventory.Offer) string {
	snapshot, _ := e.Inventory.Snapshot()
	lists = append(lists, snapshot.Offer(e.Resource.Name))
	for _, id := range counted {
		if !slices.ContainsFunc(lists, func(o *inventory.Offer) bool { return o != nil && e.Resource.find(o, id) != nil }) {
			return id
		}
	}
	return ""
}

// Foreign returns the ID of a device that the kubelet counts for the resource and that is none of ours; empty: there is
// none. For some milliseconds after a change the kubelet may count a device that has just gone.
func (e *Endpoint) Foreign(counted []string) string { return e.foreign(counted) }

// newest returns the number of the newest plugin; 0: there is none.
func newest(live []uint64) uint64 {
	if len(live) == 0 {
		return 0
	}
	return live[len(live)-1]
}
