// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// hold is why a resource is held back. It ends in one of three ways. The kubelet asks us for devices, or counts ours. The
// other plugin has ended and has not restarted within returnPause. Or it has not registered with a new kubelet within
// kubeletGrace.
type hold struct {
	kubelet identity
	found   finding   // how the other plugin shows
	rival   uint64    // the newest plugin when its devices were seen, which is most likely the other one, or 0
	ended   uint64    // Peers.Ended when a plugin was last seen to end
	end     time.Time // time of that end, until its consequence is known
	grace   time.Time // end of kubeletGrace, or zero once this kubelet has counted devices of the other plugin
}

// holdBack begins to hold the resource back, for an example of what was found.
func (c *conflict) holdBack(sock identity, found finding, id string) time.Duration {
	e := c.e
	c.suspect, c.again = ours, 0
	c.hold = c.newHold(sock, found)
	c.asked.Store(false)
	e.streams.mute(true)
	if err := e.Parked.park(e.Resource.Name, e.streams.client()); err != nil {
		e.Log.Warn("stream not stored", "err", fmt.Errorf("a restart may cut off the other plugin: %w", err))
	}
	held := c.reason(found, id)
	e.set(func(s *Status) { *s = Status{Held: held} })
	e.Log.Warn("resource held back", "reason", held,
		"remedy", "end the other plugin, or set takeover = true in a [[resource]] of that name")
	return heldInterval
}

// reason is why the resource is held back, for an example of what was found.
func (c *conflict) reason(found finding, id string) string {
	if found == same {
		return fmt.Sprintf("another plugin serves %s: it has given %s to a pod", c.e.Resource.Name, id)
	}
	return fmt.Sprintf("another plugin serves %s: the kubelet counts %s", c.e.Resource.Name, id)
}

func (c *conflict) newHold(sock identity, found finding) *hold {
	return &hold{kubelet: sock, found: found, rival: newest(c.e.Peers.Live()), ended: c.e.Peers.Ended()}
}

// reconsider asks whether the resource stays held back. It returns when to ask again, or 0 if it is not held back.
func (c *conflict) reconsider(ctx context.Context, sock identity) time.Duration {
	e := c.e
	if sock != c.hold.kubelet {
		e.Parked.drop(e.Resource.Name)
		c.hold = c.newHold(sock, foreign)
		c.hold.grace = time.Now().Add(kubeletGrace)
		e.set(func(s *Status) {
			s.Held = fmt.Sprintf("another plugin served %s before the kubelet restarted; it has %v to register",
				e.Resource.Name, kubeletGrace)
		})
	}
	if wait := time.Until(c.at.Add(askPause)); wait > 0 {
		return wait
	}
	counted, err := e.Counted(ctx)
	c.at = time.Now()
	if err != nil {
		return backstop
	}
	open, h := e.streams.open(), c.hold
	switch {
	case open && (c.asked.Swap(false) || h.found == foreign && c.isOurs(counted)): // or our last list was under way
		c.resume()
		return 0
	case h.grace.IsZero():
		return c.awaitEnd(counted, open)
	case len(counted) > 0: // the other plugin has registered again
		c.hold = c.newHold(sock, foreign)
		e.set(func(s *Status) { s.Held = c.reason(foreign, counted[0]) })
		return heldInterval
	}
	if wait := time.Until(h.grace); wait > 0 {
		return wait
	}
	return c.release()
}

// isOurs reports whether the kubelet counts devices, all of which are ours.
func (c *conflict) isOurs(counted []string) bool {
	found, _ := c.find(counted)
	return found == ours && len(counted) > 0
}

// awaitEnd waits until the other plugin has ended and has had the time to restart. It returns when to ask again.
func (c *conflict) awaitEnd(counted []string, open bool) time.Duration {
	e, h := c.e, c.hold
	live, ended := e.Peers.Live(), e.Peers.Ended()
	if h.end.IsZero() && (ended != h.ended || len(live) == 0 && len(counted) == 0) {
		h.ended, h.end = ended, time.Now()
	}
	if h.end.IsZero() {
		return heldInterval
	}
	if wait := time.Until(h.end.Add(returnPause)); wait > 0 {
		return wait
	}
	h.end = time.Time{}
	// A kubelet from 1.37 counts the last list of the other plugin as long as our stream is open.
	leftover := (open || e.Parked.has(e.Resource.Name)) && h.rival != 0 && newest(live) <= h.rival && !slices.Contains(live, h.rival)
	if len(counted) == 0 || leftover {
		return c.release()
	}
	if !slices.Contains(live, h.rival) { // it has restarted
		h.rival = newest(live)
	}
	if ended != h.ended { // another one in between, whose consequence is not known yet
		h.ended, h.end = ended, time.Now()
		return returnPause
	}
	return heldInterval
}

// release ends the holding back after the other plugin has ended. It returns when to register.
func (c *conflict) release() time.Duration {
	k := &c.e.kubelet
	k.registered, k.pause, k.notBefore = identity{}, 0, time.Time{}
	wait := c.unpark()
	c.notHeld()
	return wait
}

// resume ends the holding back where the kubelet asks us for devices. The stream stays open.
func (c *conflict) resume() {
	c.e.Parked.drop(c.e.Resource.Name)
	c.notHeld()
	c.sendAgain()
	c.e.setRegistered(true)
}

func (c *conflict) notHeld() {
	c.hold = nil
	c.e.streams.mute(false)
	c.e.set(func(s *Status) { *s = Status{} })
	c.e.Log.Info("resource no longer held back")
}

// unpark closes the connections of an earlier endpoint that were kept for the other plugin, and our stream. It returns how
// long the kubelet needs to deal with their end, or 0 if there were none.
func (c *conflict) unpark() time.Duration {
	open := c.e.streams.open()
	if !c.e.Parked.drop(c.e.Resource.Name) && !open {
		return 0
	}
	if open {
		c.e.streams.end()
	}
	c.e.kubelet.notBefore = time.Now().Add(restartPause)
	return restartPause
}

// newest returns the number of the newest plugin, or 0.
func newest(live []uint64) uint64 {
	if len(live) == 0 {
		return 0
	}
	return live[len(live)-1]
}
