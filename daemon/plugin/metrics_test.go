// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/plugin"
)

// tallied records the calls of Metrics, in order.
type tallied struct {
	mu    sync.Mutex
	calls []string
	sent  chan time.Duration
}

func (c *tallied) note(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		what += " refused"
	}
	c.calls = append(c.calls, what)
}

func TestMetrics(t *testing.T) {
	told, registered := tallied{sent: make(chan time.Duration, 16)}, make(chan struct{}, 16)
	var log strings.Builder
	b := newBench(t, func(e *plugin.Endpoint) {
		e.Log = slog.New(slog.NewTextHandler(&log, nil))
		e.Metrics = plugin.Metrics{
			Answered:   func(_, call string, err error) { told.note(call, err) },
			Registered: func(_ string, err error) { told.note("register", err); registered <- struct{}{} },
			Sent:       func(since time.Duration) { told.sent <- since },
		}
	})
	k := b.startKubelet()
	b.waitAllocatable(k, 1)
	c, err := k.Allocate(t.Context(), resource, 1)
	if err != nil {
		t.Fatal(err)
	}
	const path = "/sys/devices/virtual/widget/widget0"
	for len(told.sent) == 0 { // a list after an inspection that takes a second is not reported
		b.machine.Unplug(path)
		b.waitAllocatable(k, 0)
		b.machine.Plug(widget)
		b.waitAllocatable(k, 1) // the previous list was reported
	}
	if since := <-told.sent; since <= 0 {
		t.Errorf("%v from the event to the list", since)
	}
	b.machine.Unplug(path)
	b.waitAllocatable(k, 0)
	if err := k.PreStart(t.Context(), resource, c); err == nil {
		t.Error("started without its device")
	}
	select {
	case <-registered: // the kubelet may be faster than the answer to our registration
	case <-time.After(patience):
		t.Fatal("no registration is told of")
	}
	if err := b.endpoint.Alive(t.Context()); err != nil { // no registration is running
		t.Fatal(err)
	}
	b.stop()
	slices.Sort(told.calls)
	want := []string{"Allocate", "PreStartContainer refused"}
	for range strings.Count(log.String(), `msg="endpoint registered"`) { // several, if the kubelet takes more than a second to open its stream
		want = append(want, "register")
	}
	if !slices.Equal(told.calls, want) {
		t.Errorf("%v, want %v", told.calls, want)
	}
}
