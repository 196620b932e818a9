// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// Event is something that happened, as it is sent to whoever follows. Events are made by comparing the state that the
// client was told of last with the newest one. So what comes and goes between two looks is not told, but what is told
// is true, and who has read them all knows how everything stands.
type Event struct {
	Time time.Time `json:"time"`
	// Event is one of:
	//   listening: the first one: what happens from now on is sent
	//   added, withdrawn: a device is in an offer, or not any more; seen: it is there and not offered
	//   gone, back: its hardware
	//   healthy, unhealthy, cordoned, uncordoned: what the kubelet is told, and why
	//   allocated, released: whether a pod holds it
	//   warning: what is not as it should be; nothing in it: that is over
	//   connected, disconnected: the kubelet, to a resource
	//   reloaded, refused: the configuration; where it was refused, Problem says why and the old one holds
	//   skipped: the client was too slow for Skipped states in between
	Event    string  `json:"event"`
	Device   *Device `json:"device,omitempty"`
	Resource string  `json:"resource,omitempty"`
	Problem  string  `json:"problem,omitempty"`
	Skipped  uint64  `json:"skipped,omitempty"`
}

// sendEvents sends a line for each event until the client leaves or does not read for a while.
func (s *Server) sendEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	limits := http.NewResponseController(w)
	_ = limits.SetReadDeadline(time.Time{}) // it has nothing more to say
	f := follower{Server: s}
	write := func(events []Event) error {
		_ = limits.SetWriteDeadline(time.Now().Add(answerLimit))
		var lines bytes.Buffer
		encoder := json.NewEncoder(&lines)
		for i := range events {
			if err := encoder.Encode(&events[i]); err != nil {
				return err
			}
		}
		if _, err := w.Write(lines.Bytes()); err != nil {
			return err
		}
		return limits.Flush()
	}
	f.look(time.Now())
	if write([]Event{{Time: time.Now().UTC(), Event: "listening"}}) != nil {
		return
	}
	for f.wait(r.Context()) {
		if events := f.look(time.Now()); len(events) > 0 && write(events) != nil {
			return
		}
	}
}

// follower is one client that follows the events. It holds on to one old snapshot, of which little is not in the newest
// as well; that is all that a slow client costs.
type follower struct {
	*Server
	last      *inventory.Snapshot // that it has been told of
	connected map[string]bool     // resources that the kubelet was connected to then
	reloaded  *time.Time          // when the configuration was last reloaded then

	changes   <-chan struct{} // of the snapshot
	resources <-chan struct{} // and of the rest
}

// wait waits for the next change; false: ctx has ended.
func (f *follower) wait(ctx context.Context) bool {
	select {
	case <-f.changes:
	case <-f.resources:
	case <-ctx.Done():
		return false
	}
	return true
}

// look returns what has happened since the last look; at the first one nothing has.
func (f *follower) look(now time.Time) []Event {
	f.resources = f.next()
	snapshot, changes := f.Inventory.Snapshot()
	connected := make(map[string]bool)
	for name, r := range f.Standing() {
		connected[name] = r.Connected
	}
	configuration := f.configuration()
	last, lastConnected, lastReloaded := f.last, f.connected, f.reloaded
	f.last, f.changes, f.connected, f.reloaded = snapshot, changes, connected, configuration.Reloaded
	if last == nil {
		return nil
	}
	var events []Event
	if snapshot.Version > last.Version+1 {
		events = append(events, Event{Event: "skipped", Skipped: snapshot.Version - last.Version - 1})
	}
	events = append(events, difference(last, snapshot, f.heldBy())...)
	events = append(events, kubeletEvents(lastConnected, connected)...)
	events = append(events, reloadEvents(lastReloaded, configuration)...)
	for i := range events {
		events[i].Time = now.UTC()
	}
	return events
}

// kubeletEvents tells which resources the kubelet has connected to, or left.
func kubeletEvents(before, after map[string]bool) []Event {
	var events []Event
	for _, name := range slices.Sorted(maps.Keys(after)) {
		switch {
		case after[name] && !before[name]:
			events = append(events, Event{Event: "connected", Resource: name})
		case !after[name] && before[name]:
			events = append(events, Event{Event: "disconnected", Resource: name})
		}
	}
	return events
}

// reloadEvents tells how the last reload has ended, if there was one since.
func reloadEvents(last *time.Time, now Configuration) []Event {
	switch {
	case now.Reloaded == nil || last != nil && now.Reloaded.Equal(*last):
		return nil
	case now.Problem != "":
		return []Event{{Event: "refused", Problem: now.Problem}}
	}
	return []Event{{Event: "reloaded"}}
}

// everyDevice yields all devices: offered ones by resource and ID, then those that are only seen.
func everyDevice(s *inventory.Snapshot) iter.Seq[*inventory.Status] {
	return func(yield func(*inventory.Status) bool) {
		for _, resource := range slices.Sorted(maps.Keys(s.Offers)) {
			for _, d := range s.Offers[resource].Devices {
				if !yield(d) {
					return
				}
			}
		}
		for _, d := range s.Others {
			if !yield(d) {
				return
			}
		}
	}
}

// difference tells what happened between two snapshots, device by device. What is the same in both costs a comparison
// of pointers: a snapshot shares with the one before it all that has not changed. A device that is in the first alone
// has left the offer, and nothing is known of it any more.
func difference(before, after *inventory.Snapshot, holders map[string][]Holder) []Event {
	was := make(map[string]*inventory.Status)
	for d := range everyDevice(before) {
		was[key(d)] = d
	}
	var events []Event
	for d := range everyDevice(after) {
		old := was[key(d)]
		delete(was, key(d))
		if old == d {
			continue
		}
		for _, what := range changes(old, d) {
			device := NewDevice(d, holders)
			events = append(events, Event{Event: what, Device: &device})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		device := NewDevice(was[id], nil)
		device.Present, device.Resource = false, ""
		events = append(events, Event{Event: "withdrawn", Device: &device})
	}
	return events
}

// key is what a device is found by again: its ID, or where it is if it has none.
func key(d *inventory.Status) string {
	if d.Device.ID != "" {
		return d.Device.ID
	}
	return d.Device.SysPath
}

// changes names what has happened to a device; old is nil for one that was not there. Several things may have happened
// at once. What follows from another is not told twice: a device that is gone is unhealthy too, as is one that is
// cordoned.
func changes(old, d *inventory.Status) []string {
	if old == nil {
		if d.Resource == "" {
			return []string{"seen"}
		}
		return []string{"added"}
	}
	var all []string
	for _, c := range []struct {
		name string
		is   bool
	}{
		{"added", old.Resource == "" && d.Resource != ""},
		{"withdrawn", old.Resource != "" && d.Resource == ""},
		{"gone", old.Present && !d.Present},
		{"back", !old.Present && d.Present},
		{"allocated", !old.Held() && d.Held()},
		{"released", old.Held() && !d.Held()},
		{"cordoned", d.Cordon != nil && !d.Cordon.Same(old.Cordon)},
		{"uncordoned", old.Cordon != nil && d.Cordon == nil},
		{"healthy", d.Resource != "" && !old.Healthy && d.Healthy && old.Cordon == nil},
		{"unhealthy", d.Resource != "" && !d.Healthy && old.Gist() != d.Gist() && d.Cordon.Same(old.Cordon) && old.Present == d.Present},
		{"warning", old.Warning != d.Warning},
	} {
		if c.is {
			all = append(all, c.name)
		}
	}
	return all
}
