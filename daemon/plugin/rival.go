// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The kubelet takes the lists of all that have registered a resource and are connected still, and asks the last of them
// alone for devices, also once that has ended (kubernetes v1.36 pkg/kubelet/cm/devicemanager: plugin/v1beta1/server.go,
// runClient; manager.go, PluginConnected). Of all that our stream, which stays open, shows nothing: only what the kubelet
// counts does.
const (
	// compareSoon is when to compare again what differs: a list may have been under way.
	compareSoon = time.Second
	// compareEnded is compareSoon once a plugin has ended: the kubelet notices that within milliseconds.
	compareEnded = 200 * time.Millisecond
	// compareContested is how often to compare while another plugin offers the resource too.
	compareContested = 10 * time.Second
	// registerAgainAfter is the least time between two registrations because of a comparison, twice as long each time that it
	// was of no use, and registerAgainLast at most: each costs the kubelet a connection.
	registerAgainAfter = time.Minute
	registerAgainLast  = time.Hour
)

// count is how what the kubelet counts stands to what it was told.
type count int

const (
	ours    count = iota // nothing that was not in our list
	foreign              // a device that was not: another plugin has registered the resource
	none                 // nothing, while we have healthy devices: it holds the last endpoint for ended
)

// finding is what a comparison has shown.
type finding struct {
	is      count
	example string // of a foreign device
}

// contest is what an endpoint knows of another plugin with its resource. It is owned by whoever calls Compare.
type contest struct {
	last       finding       // of the last comparison; it holds when it is found twice
	since      time.Time     // when another plugin's devices were found; zero: not, or we have registered after it
	registered time.Time     // when we registered last because of a comparison
	pause      time.Duration // the least until we do so again
	departed   uint64        // plugins that had ended when we did
	alone      time.Time     // when the kubelet was found last to count our devices only
}

// overtaking is by what it was found that another plugin has registered the resource after us.
type overtaking struct {
	id    string    // of a device that the kubelet counts
	since time.Time // before that it did not
}

// Compare compares which devices of the resource the kubelet counts as healthy with what it was told, and returns after
// what time to compare again; 0: there is no need. If another plugin has taken the resource and has ended, or is the one
// that is asked for devices of our list, the endpoint registers again. It does not block. One call at a time.
func (e *Endpoint) Compare(counted []string) time.Duration {
	c := &e.contest
	if e.streams.everSince(c.since) { // which is that of a registration after the other's
		c.since = time.Time{}
	}
	defer e.setContested()
	if e.streams.muted() { // Run asks by itself
		c.last, c.since = finding{}, time.Time{}
		return 0
	}
	ended := e.Peers.Departed() > c.departed
	if !e.streams.open() { // it registers anyhow
		c.last = finding{}
		return 0
	}
	asked := time.Now()
	found := e.find(counted)
	twice := found == c.last
	c.last = found
	contested := !c.since.IsZero()
	switch { // what is seen for the first time may be a list that is under way, so that comes before what it would mean
	case found.is == ours && !contested:
		c.pause, c.alone = 0, asked
		return 0
	case !twice && ended:
		return compareEnded
	case !twice:
		return compareSoon
	case found.is == foreign && e.Resource.Yields && e.Counted != nil:
		e.overtaken.Store(&overtaking{found.example, c.alone})
		e.Watch.Hint()
		return compareSoon
	case found.is == foreign && !contested:
		c.since = time.Now()
		e.Log.Warn("another plugin offers the resource", "err", fmt.Errorf("the kubelet counts %q, which is no device of ours: "+
			"it asks only the one that has registered last; end the other, or name the resource differently", found.example))
		return compareContested
	case found.is == foreign || !ended && time.Since(c.registered) < max(registerAgainAfter, c.pause):
		return compareContested
	}
	c.departed = e.Peers.Departed()
	c.registered, c.pause, c.last = time.Now(), min(max(registerAgainAfter, 2*c.pause), registerAgainLast), finding{}
	e.Log.Warn("registering again", "err", fmt.Errorf("the kubelet asks another plugin for devices of the resource, or one that has ended"))
	e.streams.end()
	return compareContested
}

// setContested has others know whether another plugin offers the resource.
func (e *Endpoint) setContested() {
	if contested := !e.contest.since.IsZero(); e.contested.Swap(contested) != contested {
		e.tell()
	}
}

// find compares what the kubelet counts with our newest list.
func (e *Endpoint) find(counted []string) finding {
	snapshot, _ := e.Inventory.Snapshot()
	healthy := false
	known := make(map[string]bool)
	for _, d := range e.Resource.list(snapshot.Offer(e.Resource.Name)) {
		known[d.ID] = true
		healthy = healthy || d.Health == pluginapi.Healthy
	}
	for _, id := range counted {
		if !known[id] {
			return finding{is: foreign, example: id}
		}
	}
	if healthy && len(counted) == 0 {
		return finding{is: none}
	}
	return finding{is: ours}
}

// Foreign returns the ID of a device that the kubelet counts for the resource and that is none of ours; empty: there is
// none. For some milliseconds after a change the kubelet may count a device that has just gone.
func (e *Endpoint) Foreign(counted []string) string { return e.find(counted).example }
