// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"time"
)

// A resource that yields is held back while another plugin serves its name. The kubelet counts the devices of that plugin,
// which is asked before each registration. After a registration of the other the kubelet (before 1.37) asks the other alone
// for devices, keeps our stream open and takes the lists of both. To end that stream would cut off the other
// (kubernetes v1.36 pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, runClient). So it stays open, and silent.
//
// The other has ended when the kubelet counts nothing and a plugin that was alive is not any more. Without the second, its
// devices may only be unhealthy.
const (
	// askAgain is when to ask again before it is certain: the list of our last endpoint may be counted still.
	askAgain = 300 * time.Millisecond
	// restartPause is how long a plugin that has ended may take to restart before ours is registered.
	restartPause = time.Second
	// noticePause and noticeLimit are how often, and how long, to ask a kubelet that may not have noticed an end.
	noticePause = 100 * time.Millisecond
	noticeLimit = time.Second
	// kubeletGrace is how long the other plugin may take to register with a kubelet that has restarted. A common one that polls
	// took 5.9 s.
	kubeletGrace = 10 * time.Second
	// gracePause is how often to ask in that time.
	gracePause = 200 * time.Millisecond
	// heldInterval is how often to ask without a hint.
	heldInterval = time.Minute
)

// hold is why a resource is held back. It is owned by Run.
type hold struct {
	kubelet identity
	peers   map[Peer]bool // alive when the kubelet counted devices of another plugin
	grace   time.Time     // end of [kubeletGrace]; zero: this kubelet has counted such devices
	empty   time.Time     // since when the kubelet counts nothing though a peer has ended; zero: it is not so
	doubt   time.Time     // since when a peer has ended though the kubelet counts devices; zero: it is not so
}

// precheck asks the kubelet whether another plugin serves the resource, and returns after what time to look again; 0: none
// does, as far as the kubelet says.
func (e *Endpoint) precheck(ctx context.Context, kubelet identity) time.Duration {
	if !e.Resource.Yields || e.Counted == nil || e.unheard {
		return 0
	}
	counted, err := e.Counted(ctx)
	switch {
	case err != nil && time.Since(e.firstSeen) < eager:
		e.notBefore = time.Now().Add(settlePause / 10)
		return settlePause / 10
	case err != nil:
		return e.again(fmt.Errorf("ask the kubelet which plugin serves %s: %w", e.Resource.Name, err))
	case len(counted) == 0:
		e.counted = false
		return 0
	case !e.counted:
		e.counted = true
		e.notBefore = time.Now().Add(askAgain)
		return askAgain
	}
	return e.holdBack(kubelet, counted[0], e.Peers.Live())
}

// holdBack begins to hold the resource back, for an example of what the kubelet counts, while the peers are alive.
func (e *Endpoint) holdBack(kubelet identity, id string, peers map[Peer]bool) time.Duration {
	e.counted = false
	e.hold = &hold{kubelet: kubelet, peers: peers}
	e.streams.mute(true)
	e.complaint = ""
	e.standing = Status{Held: fmt.Sprintf("another plugin serves %s: the kubelet counts %s", e.Resource.Name, id)}
	e.stands()
	e.Log.Warn("resource held back", "reason", e.standing.Held,
		"remedy", "end the other plugin, or set takeover = true in a [[resource]] of that name")
	return heldInterval
}

// reconsider asks whether the resource is to be held back still, and returns after what time to ask again; 0: it is not any
// more.
func (e *Endpoint) reconsider(ctx context.Context, kubelet identity) time.Duration {
	h := e.hold
	if kubelet != h.kubelet {
		*h = hold{kubelet: kubelet, grace: time.Now().Add(kubeletGrace)}
	}
	counted, err := e.Counted(ctx)
	live := e.Peers.Live()
	ended := !h.alive(live)
	switch {
	case err != nil:
		return backstop
	case len(counted) > 0 && !h.unnoticed(ended, e.streams.open()):
		return h.served(live, ended)
	case len(counted) > 0:
	case !h.grace.IsZero():
		if wait := time.Until(h.grace); wait > 0 {
			return min(wait, gracePause)
		}
	case !ended:
		h.empty = time.Time{}
		return heldInterval
	default:
		if h.empty.IsZero() {
			h.empty = time.Now()
		}
		if wait := restartPause - time.Since(h.empty); wait > 0 {
			return wait
		}
	}
	e.release()
	return 0
}

// served notes that the kubelet counts devices, and returns after what time to ask again. If a peer has ended, the kubelet may
// not have noticed; a while later it is certain that the peer was a third plugin.
func (h *hold) served(live map[Peer]bool, ended bool) time.Duration {
	h.grace, h.empty = time.Time{}, time.Time{}
	switch {
	case len(h.peers) == 0 && len(live) > 0: // the kubelet has restarted
		h.peers, h.doubt = live, time.Time{}
	case ended && h.doubt.IsZero():
		h.doubt = time.Now()
		return noticePause
	case ended && time.Since(h.doubt) < noticeLimit:
		return noticePause
	case ended:
		h.peers, h.doubt = live, time.Time{}
	}
	return heldInterval
}

// unnoticed reports whether what the kubelet counts is what the other plugin has left behind: a kubelet from 1.37 counts that
// as long as our stream is open (PluginDisconnected, pkg/kubelet/cm/devicemanager/manager.go).
func (h *hold) unnoticed(ended, open bool) bool {
	return ended && open && !h.doubt.IsZero() && time.Since(h.doubt) >= noticeLimit
}

// alive reports whether all plugins are alive of which one is the other. Without any, that is not known.
func (h *hold) alive(live map[Peer]bool) bool {
	for peer := range h.peers {
		if !live[peer] {
			return false
		}
	}
	return len(h.peers) > 0
}

// release ends the holding back. What the kubelet counts shows that it has dealt with the end of the other's stream.
func (e *Endpoint) release() {
	e.hold, e.registered, e.pause, e.notBefore = nil, identity{}, 0, time.Time{}
	if e.streams.open() {
		e.notBefore = time.Now().Add(2 * settlePause)
	}
	e.streams.end()
	e.streams.mute(false)
	e.standing = Status{}
	e.stands()
	e.Log.Info("resource no longer held back")
}
