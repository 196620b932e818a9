// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// sendEvents sends a line for each event until the client disconnects or stops reading.
func (s *Server) sendEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	limits := http.NewResponseController(w)
	_ = limits.SetReadDeadline(time.Time{}) // the client sends no further requests
	f := follower{Server: s}
	write := func(events []api.Event) error {
		_ = limits.SetWriteDeadline(time.Now().Add(answerTimeout))
		var lines bytes.Buffer
		for i := range events {
			_ = json.NewEncoder(&lines).Encode(&events[i]) // cannot fail
		}
		_, err := w.Write(lines.Bytes())
		return cmp.Or(err, limits.Flush())
	}
	f.look()
	if write([]api.Event{{Time: time.Now().UTC(), Event: "listening"}}) != nil {
		return
	}
	for {
		select {
		case <-f.changes:
		case <-f.resources:
		case <-r.Context().Done():
			return
		}
		if events := f.look(); len(events) > 0 && write(events) != nil {
			return
		}
	}
}

// follower is a client that follows the events. A slow client needs little memory, because its old snapshot shares most of its
// data with the newest one.
type follower struct {
	*Server
	snapshot      *inventory.Snapshot // the snapshot for the events that were last sent
	registrations map[string]api.Registration
	reload        api.Configuration
	changes       <-chan struct{} // closed when there is a new snapshot
	resources     <-chan struct{} // closed after any other change
}

// look returns the events since the last call. The first call returns nil.
func (f *follower) look() (events []api.Event) {
	last := *f
	f.resources = f.next()
	f.snapshot, f.changes = f.Inventory.Snapshot()
	f.registrations, f.reload = f.Registrations(), f.configuration()
	if last.snapshot == nil {
		return nil
	}
	events = difference(last.snapshot, f.snapshot, f.heldBy())
	for _, name := range slices.Sorted(maps.Keys(f.registrations)) {
		is, was := f.registrations[name].Connected, last.registrations[name].Connected
		switch {
		case is && !was:
			events = append(events, api.Event{Event: "connected", Resource: name})
		case was && !is:
			events = append(events, api.Event{Event: "disconnected", Resource: name})
		}
	}
	switch at := f.reload.Reloaded; {
	case at == last.reload.Reloaded: // there was no reload since the last call
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

// difference returns the events between two snapshots, for each device. Snapshots share devices that have not changed, so it is
// enough to compare pointers. A device that is missing from the second snapshot was removed, and nothing more is known about it.
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
		for _, what := range eventNames(old, d) {
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

// key returns the ID of a device, or its sysfs path if it has no ID.
func key(d *inventory.Status) string { return cmp.Or(d.Device.ID, d.Device.SysPath) }

// eventNames returns the names of a device's events. The parameter old is nil if the device is new. Several events may have
// happened since the last snapshot. eventNames omits an event that follows from another one. For example, a device that is gone
// or cordoned is always unhealthy.
func eventNames(old, d *inventory.Status) []string {
	if old == nil {
		if d.Resource == "" {
			return []string{"seen"}
		}
		return []string{"added"}
	}
	var all []string
	moved := old.Resource != d.Resource || old.Device.SysPath != d.Device.SysPath
	for _, c := range []struct {
		name string
		is   bool
	}{
		{"added", old.Resource == "" && d.Resource != ""},
		{"withdrawn", old.Resource != "" && d.Resource == ""},
		{"gone", old.Present && !d.Present},
		{"back", !old.Present && d.Present},
		{"allocated", !old.Held() && d.Held()},
		{"released", old.Occupied() && !d.Occupied()},
		{"cordoned", d.Cordon != nil && !d.Cordon.Same(old.Cordon)},
		{"uncordoned", old.Cordon != nil && d.Cordon == nil},
		{"healthy", d.Resource != "" && !old.Healthy && d.Healthy && old.Cordon == nil},
		{"unhealthy", d.Resource != "" && !d.Healthy && old.StableReason() != d.StableReason() && d.Cordon.Same(old.Cordon) && old.Present == d.Present},
		{"warning", old.Warning != d.Warning},
		{"changed", old.Resource != "" && d.Resource != "" && (moved || old.Device.Model != d.Device.Model || old.Evidence.Size != d.Evidence.Size)},
	} {
		if c.is {
			all = append(all, c.name)
		}
	}
	return all
}
