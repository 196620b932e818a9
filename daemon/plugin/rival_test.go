// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/inventory"
	real "github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/plugin"
	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

// connected waits until the endpoint has registered, and the kubelet has its list. Where that takes a second to open its stream,
// the endpoint has registered more than once.
func (b *bench) connected(k *kubelet.Kubelet, registered chan error) {
	b.t.Helper()
	select {
	case err := <-registered:
		if err != nil {
			b.t.Fatal(err)
		}
	case <-time.After(patience):
		b.t.Fatal("not registered")
	}
	b.allocatable(k, 1)
	if err := b.endpoint.Alive(b.t.Context()); err != nil { // no call is under way
		b.t.Fatal(err)
	}
	for len(registered) > 0 {
		<-registered
	}
}

// A resource that does not yield is contested while the kubelet counts another plugin's devices, and is registered again when
// it does not any more. The name of the other plugin's socket may begin like that of ours.
func TestContested(t *testing.T) {
	for socket, after := range map[string][]string{"vendor.sock": nil, "mp-gpu.sock": nil, "vendor-2.sock": {"node-A-widget"}} {
		t.Run(fmt.Sprint(socket, after), func(t *testing.T) {
			h := newHeldBench(t, false, "node-A-widget")
			k := h.startKubelet()
			h.connected(k, h.registered)
			end := h.other(socket)
			h.counts("x")
			h.await("a conflict", func(s plugin.Status) bool { return s.Conflict && s.Connected && s.Held == "" })
			if len(h.registered) > 0 {
				t.Error("registered again while the other plugin lives")
			}
			h.counting.set(nil, after...)
			end()
			h.connected(k, h.registered)
			h.await("no conflict", func(s plugin.Status) bool { return !s.Conflict && s.Connected })
		})
	}
}

// A plugin with our own devices shows when it gives one to a container, because the answer that the kubelet keeps is not
// ours. The devices that it gave before the endpoint registered do not count, nor do those that the endpoint gives.
func TestOwnDevicesOfAnother(t *testing.T) {
	for _, yields := range []bool{false, true} {
		h := newHeldBench(t, yields)
		h.gives("before", "VENDOR")
		k := h.startKubelet()
		h.connected(k, h.registered)
		h.counting.set(nil, "node-A-widget")
		end := h.other("vendor.sock")
		h.gives("ours", "METALPLUG_EXAMPLE_ORG_WIDGET")
		h.look()
		if s := h.endpoint.Status(); s.Conflict || len(h.registered) > 0 {
			t.Errorf("yields %v, before it gives a device: %+v", yields, s)
		}
		h.gives("of the other", "VENDOR")
		h.await("a conflict", func(s plugin.Status) bool { return s.Conflict && (s.Held != "") == yields })
		h.look()
		if s := h.endpoint.Status(); !s.Conflict || !k.Resource(resource).Connected || len(h.registered) > 0 {
			t.Errorf("yields %v, while it lives: %+v", yields, s)
		}
		h.counting.set(nil)
		end()
		h.connected(k, h.registered)
		h.await("no conflict", func(s plugin.Status) bool { return !s.Conflict && s.Connected })
		h.stop()
	}
}

// A plugin with our own devices gave one before the kubelet asked us again. The kubelet's request to us ends the
// conflict.
func TestAskedBesideAnother(t *testing.T) {
	for _, yields := range []bool{false, true} {
		h := newHeldBench(t, yields)
		k := h.startKubelet()
		h.connected(k, h.registered)
		h.counting.set(nil, "node-A-widget")
		h.other("vendor.sock")
		h.gives("of the other", "VENDOR")
		h.await("a conflict", func(s plugin.Status) bool { return s.Conflict })
		if _, err := k.Allocate(t.Context(), resource, 1); err != nil {
			t.Fatal(err)
		}
		h.await("no conflict", func(s plugin.Status) bool { return !s.Conflict && s.Connected })
		h.look()
		h.look()
		if s := h.endpoint.Status(); s.Conflict || len(h.registered) > 0 {
			t.Errorf("yields %v: %+v", yields, s)
		}
		h.stop()
	}
}

// A list that is under way is no reason to register again, nor is a device that has just gone.
func TestListUnderWay(t *testing.T) {
	h := newHeldBench(t, true)
	k := h.startKubelet()
	h.connected(k, h.registered)
	h.counting.set(nil, "node-A-widget")
	h.other("third.sock")
	h.look()
	for _, first := range [][]string{nil, {"gone"}} {
		h.counting.script(first, []string{"node-A-widget"})
		h.stirUp()
		h.counting.news.until(t, "all is asked", func() bool { return h.counting.left() == 0 })
		h.look()
		if s := h.endpoint.Status(); s.Conflict || !s.Connected || len(h.registered) > 0 {
			t.Errorf("after %v: %+v, %d registrations", first, s, len(h.registered))
		}
	}
}

// The kubelet may need seconds for a long list. Until it has worked through ours, it is no sign that it counts nothing.
func TestListNotWorkedThrough(t *testing.T) {
	h := newHeldBench(t, true)
	k := h.startKubelet()
	h.connected(k, h.registered)
	for n := range 3 {
		before := h.asked()
		h.other(fmt.Sprintf("vendor%d.sock", n))
		h.counting.news.until(t, "the kubelet is asked", func() bool { return h.asked() > before })
	}
	if err := h.endpoint.Alive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := h.endpoint.Status(); !s.Connected || len(h.registered) > 0 {
		t.Errorf("%+v, %d registrations", s, len(h.registered))
	}
	h.stirUp()
	h.connected(k, h.registered)
}

// No list is sent from the appearance of another plugin until the kubelet has answered with its count. The list would
// hide that of the other plugin.
func TestNoListBesideANewPlugin(t *testing.T) {
	h := newHeldBench(t, true)
	k := h.startKubelet()
	h.connected(k, h.registered)
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	h.counting.mu.Lock()
	h.counting.by = func() []string {
		asked <- struct{}{}
		<-answer
		return []string{"x"}
	}
	h.counting.mu.Unlock()
	h.other("vendor.sock")
	<-asked
	h.machine.Unplug("/sys/devices/virtual/widget/widget0")
	for {
		snapshot, changed := h.endpoint.Inventory.Snapshot()
		if devices := snapshot.Offer(resource).Devices; len(devices) == 0 || !devices[0].Healthy {
			break
		}
		<-changed
	}
	close(answer)
	h.held(true)
	h.allocatable(k, 1)
}

func TestForeign(t *testing.T) {
	for _, test := range []struct {
		shares   int
		own      []string
		another  string
		cordoned bool // which the kubelet hears a moment later
	}{
		{0, []string{"node-A-widget"}, "x", false},
		{0, []string{"node-A-widget"}, "x", true},
		{2, []string{"node-A-widget::0", "node-A-widget::1"}, "node-A-widget", false},
	} {
		b := newBench(t, func(e *plugin.Endpoint) { e.Resource.Shares = test.shares })
		if test.cordoned {
			if err := b.endpoint.Inventory.Cordon(t.Context(), "node-A-widget", inventory.Cordon{Reason: "loose"}); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.endpoint.Foreign(test.own); got != "" {
			t.Errorf("%+v: foreign %q, want none", test, got)
		}
		if got := b.endpoint.Foreign(append(test.own, test.another)); got != test.another {
			t.Errorf("%+v: foreign %q", test, got)
		}
	}
}

// Another plugin's socket that comes or goes, and the kubelet's checkpoint, are events. The files that the checkpoint is written
// to are not, nor is anything else that happens to another plugin's socket.
func TestStir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stirred := make(chan struct{}, 100)
	watch := watched(t, dir, func() { stirred <- struct{}{} })
	ours, _ := watch.Subscribe()
	path := func(name string) string { return filepath.Join(dir, name) }
	touch := func(name string) error {
		return errors.Join(os.WriteFile(path(name), nil, 0o600), os.Remove(path(name)))
	}
	for i, step := range []struct {
		what string
		do   func() error
		stir bool
	}{
		{"a temporary file", func() error { return touch(".213") }, false},
		{"the checkpoint", func() error {
			return errors.Join(os.WriteFile(path(".214"), nil, 0o600), os.Rename(path(".214"), path(real.CheckpointFile)))
		}, true},
		{"another's is made", func() error { return os.WriteFile(path("gpu.sock"), nil, 0o600) }, true},
		{"another's is written to", func() error { return os.WriteFile(path("gpu.sock"), []byte("x"), 0o600) }, false},
		{"another's gets another mode", func() error { return os.Chmod(path("gpu.sock"), 0o666) }, false},
		{"another's moves away", func() error { return os.Rename(path("gpu.sock"), dir+".gpu.sock") }, true},
		{"another's moves in", func() error { return os.Rename(dir+".gpu.sock", path("gpu.sock")) }, true},
		{"another's goes", func() error { return os.Remove(path("gpu.sock")) }, true},
		{"another directory comes", func() error {
			return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
		}, true},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if step.stir {
			<-stirred
		}
		last := path(fmt.Sprintf("mp-01234567-%d.sock", i)) // one event, so that no hint is left for the next step
		if err := os.Mkdir(last, 0o700); err != nil {
			t.Fatal(err)
		}
		<-ours // all that came before has been seen
		if !step.stir && len(stirred) > 0 {
			t.Errorf("%s is an event", step.what)
		}
		for len(stirred) > 0 {
			<-stirred
		}
	}
}

// watched watches a directory until the test ends.
func watched(t *testing.T, dir string, stir func()) *plugin.Watch {
	t.Helper()
	w := &plugin.Watch{Dir: dir, Log: slog.New(slog.DiscardHandler), Stir: stir}
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- w.Run(ctx, func() { close(started) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-started
	return w
}

// A plugin that stops gracefully does not wait for the connection that Peers has to it.
func TestGracefulStopBesidePeers(t *testing.T) {
	h := newHeldBench(t, true)
	path := filepath.Join(h.dir, "vendor.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Invoke(t.Context(), "/none/none", &pluginapi.Empty{}, &pluginapi.Empty{}, grpc.WaitForReady(true)) // it serves
	if status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	conn.Close()
	h.beside.until(t, "it is seen", func() bool { return len(h.peers.Live()) == 1 })
	s.GracefulStop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	h.beside.until(t, "it ends", func() bool { return len(h.peers.Live()) == 0 })
}
