// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// follow returns the events of metalplugd.
func (b *bench) follow() <-chan api.Event {
	b.t.Helper()
	body, err := b.Stream(b.t.Context(), "/v1/events")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { body.Close() })
	events := make(chan api.Event, 1000)
	go func() {
		defer close(events)
		for decoder := json.NewDecoder(body); ; {
			var e api.Event
			if decoder.Decode(&e) != nil {
				return
			}
			events <- e
		}
	}()
	if e := <-events; e.Event != "listening" {
		b.t.Fatalf("the first event is %+v", e)
	}
	return events
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
	events := b.follow()
	for i := range 200 { // about 100 KiB of events for each client
		name := fmt.Sprintf("many%d", i)
		b.machine.Plug(widget(name, name))
	}
	b.waitSnapshot("all there", func(s *inventory.Snapshot) bool { return len(s.Offer(resource).Devices) == 201 })
	added := 0
	for added < 200 {
		select {
		case e := <-events:
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
