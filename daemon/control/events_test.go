// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// stream follows the events of metalplugd.
type stream struct {
	t      testing.TB
	events chan api.Event
}

func (b *bench) follow() *stream {
	b.t.Helper()
	body, err := b.Stream(b.t.Context(), "/v1/events")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { body.Close() })
	s := &stream{b.t, make(chan api.Event, 1000)}
	go func() {
		defer close(s.events)
		decoder := json.NewDecoder(body)
		for {
			var e api.Event
			if decoder.Decode(&e) != nil {
				return
			}
			s.events <- e
		}
	}()
	s.next("listening")
	return s
}

// next checks that the next event is the expected one for this device or resource.
func (s *stream) next(want string) {
	s.t.Helper()
	select {
	case e := <-s.events:
		got := e.Event
		if e.Device != nil {
			got += " " + e.Device.ID
		}
		if got = strings.TrimSpace(got + " " + e.Resource + e.Problem); got != want || e.Time.IsZero() {
			s.t.Fatalf("%s at %v, want %s", got, e.Time, want)
		}
	case <-time.After(patience):
		s.t.Fatalf("never %s", want)
	}
}

func TestEvents(t *testing.T) {
	var connected atomic.Bool
	b := start(t, widget("widget0", "A"), func(o *control.Options) {
		o.Registrations = func() map[string]api.Registration {
			return map[string]api.Registration{resource: {Connected: connected.Load()}}
		}
	})
	s := b.follow()
	b.machine.Plug(widget("widget2", "B"))
	s.next("added node-B-widget")
	if err := b.cordon(alpha, "x"); err != nil {
		t.Fatal(err)
	}
	s.next("cordoned " + alpha)
	if err := b.Post(t.Context(), "/v1/devices/"+alpha+"/uncordon", api.Change{}, new(api.Device)); err != nil {
		t.Fatal(err)
	}
	s.next("uncordoned " + alpha)
	b.inventory.Allocated(map[string][]string{alpha: {alpha}}, "")
	s.next("allocated " + alpha)
	b.machine.Unplug("/sys/devices/virtual/widget/widget0")
	s.next("gone " + alpha)
	b.machine.Plug(widget("widget0", "A"))
	s.next("back " + alpha)
	s.next("healthy " + alpha)
	b.inventory.Released([]string{alpha})
	s.next("released " + alpha)
	b.machine.Plug(strings.Replace(widget("widget0", "A"), "E: ID_SERIAL=", "E: ID_MODEL=new\nE: ID_SERIAL=", 1))
	s.next("changed " + alpha)
	connected.Store(true)
	b.server.Changed()
	s.next("connected " + resource)
	connected.Store(false)
	b.server.Changed()
	s.next("disconnected " + resource)
	b.server.Reloaded(nil, errors.New("t.toml:1: x: unknown key"))
	s.next("refused t.toml:1: x: unknown key")
	b.server.Changed() // another change
	b.server.Reloaded(nil, nil)
	s.next("reloaded")
}

// TestSlowClientsDoNotBlock checks that other clients are served while some clients never read their events, and others
// send nothing. A client that reads late gets the newest state.
func TestSlowClientsDoNotBlock(t *testing.T) {
	b := start(t, widget("widget0", "A"))
	late := b.dial()
	fmt.Fprint(late, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
	for range 20 {
		fmt.Fprint(b.dial(), "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
		b.dial()
		fmt.Fprint(b.dial(), "GET /v1/sta")
	}
	s := b.follow()
	for i := range 200 { // about 100 KiB of events for each client
		name := fmt.Sprintf("many%d", i)
		b.machine.Plug(widget(name, name))
	}
	b.waitSnapshot("all there", func(s *inventory.Snapshot) bool { return len(s.Offer(resource).Devices) == 201 })
	added := 0
	for added < 200 {
		select {
		case e := <-s.events:
			if e.Event == "added" {
				added++
			}
		case <-time.After(patience):
			t.Fatalf("%d devices are told of", added)
		}
	}
	if got := get[api.Status](b, "/v1/status"); got.Devices.Healthy != 201 {
		t.Errorf("%+v", got.Devices)
	}
	seen := make(map[string]bool)
	lines := bufio.NewScanner(late)
	for len(seen) < 200 && lines.Scan() {
		var e api.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Device != nil {
			seen[e.Device.ID] = true
		}
	}
	if len(seen) != 200 {
		t.Errorf("the late one has seen %d devices: %v", len(seen), lines.Err())
	}
}
