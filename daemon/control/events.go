// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// sendEvents sends a line for each event until the client leaves or does not read for a while.
func (s *Server) sendEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	limits := http.NewResponseController(w)
	_ = limits.SetReadDeadline(time.Time{}) // it has nothing more to say
	f := follower{Server: s}
	write := func(events []api.Event) error {
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
	f.look()
	if write([]api.Event{{Time: time.Now().UTC(), Event: "listening"}}) != nil {
		return
	}
	var missed []api.Event // while the client took the last events
	for f.wait(r.Context()) {
		events := append(missed, f.look()...)
		if missed = nil; len(events) == 0 {
			continue
		}
		began := time.Now()
		if write(events) != nil {
			return
		}
		newest, _ := f.Inventory.Snapshot()
		missed = missing(f.snapshot.Version, newest.Version, time.Since(began))
	}
}

// slowClient is the longest that a client may need to read the events of one state. A slower client gets an event that says how
// many states it missed. A client that keeps up may miss some too, for the daemon makes several snapshots at once.
const slowClient = time.Second

// missing returns what to tell a client that took so long to take the events up to a snapshot, with the version of the newest.
func missing(sent, newest uint64, took time.Duration) []api.Event {
	if newest <= sent+1 || took < slowClient {
		return nil
	}
	return []api.Event{{
		Time: time.Now().UTC(), Event: "missed",
		Problem: fmt.Sprintf("%d states in between: the client took %v to read the last events", newest-sent-1, took.Truncate(time.Millisecond)),
	}}
}

// follower is one client that follows the events. It holds on to one old snapshot, of which little is not in the newest
// as well; that is all that a slow client costs.
type follower struct {
	*Server
	snapshot  *inventory.Snapshot // that it was sent
	standing  map[string]api.Standing
	reload    api.Configuration
	changes   <-chan struct{} // of the snapshot
	resources <-chan struct{} // and of the rest
}

// wait waits for the next change. It returns false if ctx has ended.
func (f *follower) wait(ctx context.Context) bool {
	select {
	case <-f.changes:
	case <-f.resources:
	case <-ctx.Done():
		return false
	}
	return true
}

// look returns what has happened since the last look, which at the first one is nothing.
func (f *follower) look() (events []api.Event) {
	last := *f
	f.resources = f.next()
	f.snapshot, f.changes = f.Inventory.Snapshot()
	f.standing, f.reload = f.Standing(), f.configuration()
	if last.snapshot == nil {
		return nil
	}
	events = difference(last.snapshot, f.snapshot, f.heldBy())
	for _, name := range slices.Sorted(maps.Keys(f.standing)) {
		switch was, is := last.standing[name].Connected, f.standing[name].Connected; {
		case is && !was:
			events = append(events, api.Event{Event: "connected", Resource: name})
		case was && !is:
			events = append(events, api.Event{Event: "disconnected", Resource: name})
		}
	}
	switch at := f.reload.Reloaded; {
	case at == last.reload.Reloaded: // there was none since
	case f.reload.Problem != "":
		events = append(events, api.Event{Event: "refused", Problem: f.reload.Problem})
	default:
		events = append(events, api.Event{Event: "reloaded"})
	}
	now := time.Now().UTC()
	for i := range events {
		events[i].Time = now
	}
	return events
}

// difference tells what happened between two snapshots, device by device. A device that is the same in both costs
// a comparison of pointers. A snapshot shares with the one before it all that has not changed. A device that is in the first alone
// has left the offer, and nothing is known of it any more.
func difference(before, after *inventory.Snapshot, holders map[string][]api.Pod) []api.Event {
	was := make(map[string]*inventory.Status)
	for d := range before.All() {
		was[key(d)] = d
	}
	var events []api.Event
	for d := range after.All() {
		old := was[key(d)]
		delete(was, key(d))
		if old == d {
			continue
		}
		for _, what := range changes(old, d) {
			device := NewDevice(d, holders)
			events = append(events, api.Event{Event: what, Device: &device})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		device := NewDevice(was[id], nil)
		device.Present, device.Resource = false, ""
		events = append(events, api.Event{Event: "withdrawn", Device: &device})
	}
	return events
}

// key is what a device is found by again, which is its ID, or its place if it has none.
func key(d *inventory.Status) string {
	if d.Device.ID != "" {
		return d.Device.ID
	}
	return d.Device.SysPath
}

// changes names what has happened to a device. old is nil for one that was not there. Several things may have happened
// at once. A change that follows from another is not told twice. A device that is gone is unhealthy too, as is one that is
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
