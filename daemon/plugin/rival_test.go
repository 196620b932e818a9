// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/plugin"
	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

// waitConnected waits until the endpoint has registered and the kubelet has its list. If the kubelet needs a second to open its
// stream, the endpoint has registered more than once.
func (b *bench) waitConnected(k *kubelet.Kubelet, registered chan error) {
	b.t.Helper()
	select {
	case err := <-registered:
		if err != nil {
			b.t.Fatal(err)
		}
	case <-time.After(patience):
		b.t.Fatal("not registered")
	}
	b.waitAllocatable(k, 1)
	if err := b.endpoint.Alive(b.t.Context()); err != nil { // no call is running
		b.t.Fatal(err)
	}
	for len(registered) > 0 {
		<-registered
	}
}

// A resource that does not yield is registered although another plugin serves it. If the other plugin registers again later,
// the resource is held back like any other resource. The name of the other plugin's socket may have our prefix.
func TestOvertakenThoughItDoesNotYield(t *testing.T) {
	for _, socket := range []string{"vendor.sock", "mp-gpu.sock"} {
		h := newHeldBench(t, false, "x")
		k := h.startKubelet()
		h.waitConnected(k, h.registered)
		end := h.servePlugin(socket)
		h.setCounted("x")
		h.waitHeld(true)
		if len(h.registered) > 0 {
			t.Errorf("%s: registered again while the other plugin lives", socket)
		}
		h.counting.set(nil)
		end()
		h.waitConnected(k, h.registered)
		h.waitHeld(false)
		h.stop()
	}
}

// The endpoint detects a plugin with the same device IDs when that plugin gives a device to a container, because the answer
// that the kubelet has saved is not ours. Devices that the other plugin gave before the endpoint registered do not count.
// Devices that the endpoint gives do not count either.
func TestSameIDsFromOtherPlugin(t *testing.T) {
	for _, yields := range []bool{false, true} {
		h := newHeldBench(t, yields)
		h.recordContainer("before", "VENDOR")
		k := h.startKubelet()
		h.waitConnected(k, h.registered)
		h.counting.set(nil, "node-A-widget")
		end := h.servePlugin("vendor.sock")
		h.recordContainer("ours", "METALPLUG_EXAMPLE_ORG_WIDGET")
		h.look()
		if s := h.endpoint.Status(); s.Held != "" || len(h.registered) > 0 {
			t.Errorf("yields %v, before it gives a device: %+v", yields, s)
		}
		h.recordContainer("of the other", "VENDOR")
		h.waitHeld(true)
		h.look()
		if s := h.endpoint.Status(); s.Held == "" || !k.Resource(resource).Connected || len(h.registered) > 0 {
			t.Errorf("yields %v, while it lives: %+v", yields, s)
		}
		h.counting.set(nil)
		end()
		h.waitConnected(k, h.registered)
		h.waitHeld(false)
		h.stop()
	}
}

// The endpoint does not register again because of a list in transit, or because of a device that has just vanished.
func TestListUnderWay(t *testing.T) {
	h := newHeldBench(t, true)
	k := h.startKubelet()
	h.waitConnected(k, h.registered)
	h.counting.set(nil, "node-A-widget")
	h.servePlugin("third.sock")
	h.look()
	for _, first := range [][]string{nil, {"gone"}} {
		h.counting.script(first, []string{"node-A-widget"})
		h.stirUp()
		h.counting.news.waitFor(t, "all is asked", func() bool { return h.counting.left() == 0 })
		h.look()
		if s := h.endpoint.Status(); s.Held != "" || !s.Connected || len(h.registered) > 0 {
			t.Errorf("after %v: %+v, %d registrations", first, s, len(h.registered))
		}
	}
}

// If another plugin has ended and the kubelet counts no device, the kubelet has disconnected us too. The kubelet may need seconds
// to process a long list. Until then, an answer without devices does not count.
func TestListNotProcessed(t *testing.T) {
	h := newHeldBench(t, true)
	k := h.startKubelet()
	h.waitConnected(k, h.registered)
	h.servePlugin("vendor.sock")()
	for range 3 {
		before := h.asked()
		h.counting.news.waitFor(t, "the kubelet is asked", func() bool { return h.asked() > before })
	}
	if err := h.endpoint.Alive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := h.endpoint.Status(); !s.Connected || len(h.registered) > 0 {
		t.Errorf("%+v, %d registrations", s, len(h.registered))
	}
	h.servePlugin("third.sock")
	h.stirUp()
	h.waitConnected(k, h.registered)
	h.look()
	h.look()
	if len(h.registered) > 0 {
		t.Error("registered again, although no other plugin has ended")
	}
}

// An answer without devices does not count if the list has changed during the query. All devices may have been unhealthy
// for a moment.
func TestListChangesDuringQuery(t *testing.T) {
	h := newHeldBench(t, true)
	k := h.startKubelet()
	h.waitConnected(k, h.registered)
	h.counting.set(nil, "node-A-widget")
	h.servePlugin("third.sock")
	h.servePlugin("vendor.sock")()
	h.look()
	gate := h.counting.bar()
	h.counting.script(nil, nil, []string{"node-A-widget"})
	h.stirUp()
	if err := h.endpoint.Inventory.Cordon(t.Context(), "node-A-widget", api.Cordon{Reason: "loose"}); err != nil {
		t.Fatal(err)
	}
	h.waitAllocatable(k, 0)
	if _, err := h.endpoint.Inventory.Uncordon(t.Context(), "node-A-widget"); err != nil {
		t.Fatal(err)
	}
	h.waitAllocatable(k, 1)
	close(gate)
	h.counting.news.waitFor(t, "all is asked", func() bool { return h.counting.left() == 0 })
	h.look()
	if s := h.endpoint.Status(); !s.Connected || len(h.registered) > 0 {
		t.Errorf("%+v, %d registrations", s, len(h.registered))
	}
}

func TestForeign(t *testing.T) {
	for _, test := range []struct {
		shares   int
		own      []string
		another  string
		cordoned bool // whether the device is cordoned, which the kubelet learns a moment later
	}{
		{0, []string{"node-A-widget"}, "x", false},
		{0, []string{"node-A-widget"}, "x", true},
		{2, []string{"node-A-widget::0", "node-A-widget::1"}, "node-A-widget", false},
	} {
		b := newBench(t, func(e *plugin.Endpoint) { e.Resource.Shares = test.shares })
		if test.cordoned {
			if err := b.endpoint.Inventory.Cordon(t.Context(), "node-A-widget", api.Cordon{Reason: "loose"}); err != nil {
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

// A plugin can stop gracefully although metalplugd keeps a connection to the plugin.
func TestGracefulStopWithPeers(t *testing.T) {
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
	err = conn.Invoke(t.Context(), "/none/none", &pluginapi.Empty{}, &pluginapi.Empty{}, grpc.WaitForReady(true)) // waits until the plugin serves
	if status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	conn.Close()
	s.GracefulStop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	h.waitPlugins("it ends", func(live []int, _ int) bool { return len(live) == 0 })
}
