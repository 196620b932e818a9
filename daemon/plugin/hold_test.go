// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/metalplug/metalplug/daemon/plugin"
)

// counting is what a kubelet says that it counts.
type counting struct {
	mu    sync.Mutex
	ids   []string
	err   error
	asked int
}

func (c *counting) set(err error, ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids, c.err = ids, err
}

func (c *counting) count(context.Context) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return slices.Clone(c.ids), c.err
}

// heldBench is a bench whose resource yields, with the other plugins of its directory.
type heldBench struct {
	*bench
	counting   *counting
	registered chan error
	changed    chan struct{}
}

func newHeldBench(t *testing.T, ids ...string) *heldBench {
	t.Helper()
	h := &heldBench{counting: &counting{ids: ids}, registered: make(chan error, 100), changed: make(chan struct{}, 1000)}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	h.bench = newBench(t, func(e *plugin.Endpoint) {
		e.Resource.Yields = true
		e.Counted = h.counting.count
		e.Peers = &plugin.Peers{Dir: e.Dir, Changed: make(chan struct{}, 1)}
		e.Tally.Registered = func(_ string, err error) { h.registered <- err }
		e.Changed = func() { h.changed <- struct{}{} }
		started := make(chan struct{})
		running.Go(func() {
			if err := e.Peers.Run(ctx, func() { close(started) }); err != nil {
				t.Error(err)
			}
		})
		<-started
		running.Go(func() { // what the daemon does
			for {
				select {
				case <-ctx.Done():
					return
				case <-e.Watch.Doubts():
					e.Peers.Live()
				case <-e.Peers.Changed:
					e.Watch.Hint()
				}
			}
		})
	})
	t.Cleanup(func() {
		h.stop()
		stop()
		running.Wait()
	})
	return h
}

// held waits until the resource is held back, or not any more.
func (h *heldBench) held(want bool) {
	h.t.Helper()
	limit := time.After(patience)
	for (h.endpoint.Status().Held != "") != want {
		select {
		case <-h.changed:
		case <-limit:
			h.t.Fatalf("held back is never %v: %+v", want, h.endpoint.Status())
		}
	}
}

// other serves a plugin that says nothing; end ends it as a crash does.
func (h *heldBench) other(name string) (end func()) {
	h.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(h.dir, name), Net: "unix"})
	if err != nil {
		h.t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	s := grpc.NewServer()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	end = sync.OnceFunc(func() {
		s.Stop()
		<-served
	})
	h.t.Cleanup(end)
	for len(h.endpoint.Peers.Live()) == 0 { // whoever looked before it listened tries again
		time.Sleep(time.Millisecond)
	}
	return end
}

// A resource that another plugin serves is not registered, and is once the kubelet counts nothing and that plugin has ended.
func TestHeldBackUntilTheOtherEnds(t *testing.T) {
	h := newHeldBench(t, "x")
	k := h.startKubelet()
	end := h.other("vendor.sock")
	h.held(true)
	h.look()
	if s := h.endpoint.Status(); s.Registered || s.Connected || !s.Conflict || s.Held != "another plugin serves example.org/widget: the kubelet counts x" {
		t.Errorf("%+v", s)
	}
	h.counting.set(nil) // all its devices are unhealthy
	h.look()
	if h.endpoint.Status().Held == "" || len(h.registered) > 0 {
		t.Error("registered while the other plugin lives")
	}
	end()
	h.held(false)
	h.connected(k, h.registered)
	if s := h.endpoint.Status(); s.Conflict {
		t.Errorf("%+v", s)
	}
}

// A kubelet that cannot say what it counts is asked until it can.
func TestKubeletThatCannotBeAsked(t *testing.T) {
	h := newHeldBench(t)
	h.counting.set(errors.New("rejected by rate limit"))
	k := h.startKubelet()
	limit := time.After(patience)
	const want = "endpoint not registered: ask the kubelet which plugin serves example.org/widget: rejected by rate limit"
	for h.endpoint.Status().Complaint != want {
		select {
		case <-h.changed:
		case <-limit:
			t.Fatalf("the complaint is %q, want %q", h.endpoint.Status().Complaint, want)
		}
	}
	if len(h.registered) > 0 {
		t.Error("registered without asking")
	}
	h.counting.set(nil)
	h.connected(k, h.registered)
}

// The list of an endpoint before this one may be counted for a moment.
func TestOwnListOfBefore(t *testing.T) {
	h := newHeldBench(t, "node-A-widget")
	k := h.startKubelet()
	for h.asked() == 0 {
		time.Sleep(time.Millisecond)
	}
	h.counting.set(nil)
	h.connected(k, h.registered)
	if h.endpoint.Status().Held != "" {
		t.Error("held back")
	}
}

// Another plugin registers after us. Our stream stays open, since its end would cut off the other, and is silent.
func TestOvertaken(t *testing.T) {
	h := newHeldBench(t)
	k := h.startKubelet()
	h.connected(k, h.registered)
	h.endpoint.Compare([]string{"node-A-widget"})
	end := h.other("vendor.sock")
	h.counting.set(nil, "x")
	for range 2 {
		h.endpoint.Compare([]string{"x"})
	}
	h.held(true)
	if !k.Resource(resource).Connected {
		t.Error("the stream has ended")
	}
	lists := k.Resource(resource).Lists
	h.machine.Unplug("/sys/devices/virtual/widget/widget0")
	h.machine.Plug(widget)
	h.look()
	if now := k.Resource(resource).Lists; now != lists {
		t.Errorf("%d lists more were sent", now-lists)
	}
	end()
	h.counting.set(nil)
	h.held(false)
	h.connected(k, h.registered)
}

// look has the endpoint look at how things stand, and waits until it has.
func (h *heldBench) look() {
	h.t.Helper()
	before := h.asked()
	h.endpoint.Watch.Hint()
	for h.asked() == before {
		time.Sleep(time.Millisecond)
	}
	if err := h.endpoint.Alive(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

func (h *heldBench) asked() int {
	h.counting.mu.Lock()
	defer h.counting.mu.Unlock()
	return h.counting.asked
}
