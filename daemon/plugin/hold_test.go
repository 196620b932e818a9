// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/verdict"
	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

// counting is a kubelet that reports its device list.
type counting struct {
	gate  chan struct{} // if not nil, calls are not answered before this is closed
	mu    sync.Mutex
	next  [][]string // the next answers, which are returned before ids
	ids   []string
	err   error
	asked int
	news  news
}

// news wakes up goroutines that wait for a change.
type news struct {
	mu   sync.Mutex
	next chan struct{}
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}

// wait returns a channel that is closed at the next change. Call it before checking the state.
func (n *news) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

// waitFor waits for a condition. The condition may only change together with news.
func (n *news) waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.After(patience)
	for next := n.wait(); !holds(); next = n.wait() {
		select {
		case <-next:
		case <-limit:
			t.Errorf("never: %s", what)
			return
		}
	}
}

func (c *counting) set(err error, ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids, c.err = ids, err
}

// bar blocks all answers until the gate is closed.
func (c *counting) bar() (gate chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate = make(chan struct{})
	return c.gate
}

// script sets the next answers. The last answer is repeated.
func (c *counting) script(answers ...[]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next, c.ids = answers[:len(answers)-1], answers[len(answers)-1]
}

func (c *counting) left() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.next)
}

func (c *counting) count(context.Context) ([]string, error) {
	c.mu.Lock()
	gate := c.gate
	c.mu.Unlock()
	if gate != nil {
		<-gate
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.news.tell()
	c.asked++
	if len(c.next) > 0 {
		ids := c.next[0]
		c.next = c.next[1:]
		return ids, nil
	}
	return slices.Clone(c.ids), c.err
}

// heldBench is a bench with other plugins. Its resource may yield.
type heldBench struct {
	*bench
	counting   *counting
	hints      <-chan struct{} // receives hints about other plugins too
	registered chan error
	changed    chan struct{}
	saved      []any // allocations of containers in the checkpoint
}

func newHeldBench(t *testing.T, yields bool, ids ...string) *heldBench {
	t.Helper()
	h := &heldBench{
		counting: &counting{ids: ids}, registered: make(chan error, 100), changed: make(chan struct{}, 1000),
	}
	h.bench = newBench(t, func(e *plugin.Endpoint) {
		e.Resource.Yields = yields
		e.Counted = h.counting.count
		e.Metrics.Registered = func(_ string, err error) { h.registered <- err }
		e.Changed = func() { h.changed <- struct{}{} }
		h.hints, _ = e.Watch.Subscribe()
	})
	return h
}

// waitPlugins waits until is returns true for the other plugins that run and the number of plugins that have ended.
func (h *heldBench) waitPlugins(what string, is func(live []int, ended int) bool) {
	h.t.Helper()
	limit := time.After(patience)
	for {
		live, ended, _ := h.endpoint.Watch.Others()
		if is(live, ended) {
			return
		}
		select {
		case <-h.hints:
		case <-limit:
			h.t.Fatalf("never: %s: %v alive, %d ended", what, live, ended)
		}
	}
}

// await waits until is returns true for the endpoint's status.
func (h *heldBench) await(what string, is func(api.Registration) bool) {
	h.t.Helper()
	limit := time.After(patience)
	for !is(h.endpoint.Status()) {
		select {
		case <-h.changed:
		case <-limit:
			h.t.Fatalf("never %s: %+v", what, h.endpoint.Status())
		}
	}
}

// waitHeld waits until the resource is held back, or no longer held back.
func (h *heldBench) waitHeld(want bool) {
	h.t.Helper()
	h.await(fmt.Sprintf("held back: %v", want), func(s api.Registration) bool { return (s.Held != "") == want })
}

// servePlugin serves a plugin that makes no calls. end ends it like a crash.
func (h *heldBench) servePlugin(name string) (end func()) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
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
		_, before, _ := h.endpoint.Watch.Others()
		s.Stop()
		<-served
		h.waitPlugins(name+" ends", func(_ []int, ended int) bool { return ended != before })
	})
	h.t.Cleanup(s.Stop)
	if live, _, _ := h.endpoint.Watch.Others(); len(live) == 0 {
		h.t.Errorf("%s is not seen", name)
	}
	return end
}

// stirUp writes the checkpoint, as the kubelet does after each list.
func (h *heldBench) stirUp() {
	h.t.Helper()
	next := filepath.Join(h.dir, ".next")
	text, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": h.saved}, "Checksum": 1})
	if err := errors.Join(err, os.WriteFile(next, text, 0o600), os.Rename(next, filepath.Join(h.dir, checkpoint.File))); err != nil {
		h.t.Fatal(err)
	}
}

// setCounted makes the kubelet accept a list of another plugin.
func (h *heldBench) setCounted(ids ...string) {
	h.t.Helper()
	h.counting.set(nil, ids...)
	h.stirUp()
}

// recordContainer records a container with a device from a plugin whose answer sets a variable.
func (h *heldBench) recordContainer(pod, variable string) {
	h.t.Helper()
	answer, err := proto.Marshal(&pluginapi.ContainerAllocateResponse{Envs: map[string]string{variable: "x"}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.saved = append(h.saved, map[string]any{
		"PodUID": pod, "ContainerName": "c", "ResourceName": resource,
		"DeviceIDs": map[string][]string{"-1": {"node-A-widget"}}, "AllocResp": answer,
	})
	h.stirUp()
}

// look waits until the endpoint has queried the kubelet once more.
func (h *heldBench) look() {
	h.t.Helper()
	before := h.asked()
	h.stirUp()
	h.counting.news.waitFor(h.t, "the kubelet is asked", func() bool { return h.asked() != before })
	if err := h.endpoint.Alive(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

func (h *heldBench) asked() int {
	h.counting.mu.Lock()
	defer h.counting.mu.Unlock()
	return h.counting.asked
}

// If another plugin exists and the kubelet cannot be queried, the endpoint retries until it can.
func TestKubeletUnreachable(t *testing.T) {
	h := newHeldBench(t, true)
	h.counting.set(errors.New("rejected by rate limit"))
	gate := h.counting.bar()
	k := h.startKubelet()
	h.servePlugin("vendor.sock")
	close(gate)
	const want = "endpoint not registered: ask the kubelet which plugin serves example.org/widget: rejected by rate limit; "
	h.await("a complaint", func(s api.Registration) bool { return strings.HasPrefix(s.Complaint, want) })
	if len(h.registered) > 0 {
		t.Error("registered without asking")
	}
	h.counting.set(nil)
	h.waitConnected(k, h.registered)
}

// The endpoint registers the resource without an answer if there is no other plugin.
func TestNoAnswerAndNoOtherPlugin(t *testing.T) {
	h := newHeldBench(t, true)
	h.counting.set(errors.New("connect: no such file or directory"))
	h.waitConnected(h.startKubelet(), h.registered)
}

// A kubelet that is older than the endpoint may still process the end of an earlier stream, and count its devices. The endpoint
// asks until the kubelet counts none, but not longer than this takes. A new kubelet is not asked.
func TestEndOfEarlierEndpoint(t *testing.T) {
	for _, test := range []struct {
		older bool
		err   error // the kubelet's answer
	}{{false, nil}, {true, nil}, {true, errors.New("rejected by rate limit")}} {
		var k *kubelet.Kubelet
		asked, registered := 0, make(chan error, 100)
		b := newBench(t, func(e *plugin.Endpoint) {
			if test.older {
				k = startKubelet(t, e.Dir)
			}
			e.Counted = func(context.Context) ([]string, error) {
				asked++
				return []string{"node-A-widget"}, test.err
			}
			e.Metrics.Registered = func(_ string, err error) { registered <- err }
		})
		if !test.older {
			k = b.startKubelet()
		}
		b.waitConnected(k, registered)
		b.stop()
		if test.older && asked < 2 || !test.older && asked > 0 {
			t.Errorf("%+v: asked %d times", test, asked)
		}
	}
}

// If the kubelet restarts while the resource is held back, the endpoint asks the new kubelet, although no event reports the end of
// a plugin whose socket is outside the kubelet's directory.
func TestKubeletRestartsWhileHeld(t *testing.T) {
	h := newHeldBench(t, true, "x")
	k := h.startKubelet()
	h.waitHeld(true)
	h.counting.set(nil)
	before := h.asked()
	k.Stop()
	h.startKubelet()
	h.counting.news.waitFor(t, "the new kubelet is asked", func() bool { return h.asked() != before })
}

// TestEnv uses devices with and without a PCI function. The story container.txt covers the rest.
func TestEnv(t *testing.T) {
	var devices []*inventory.Status
	for _, d := range []*device.Device{
		{ID: "a", SysPath: "/sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1"},
		{ID: "b", SysPath: "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:02.0/drm/card0"},
		{ID: "c", SysPath: "/sys/devices/virtual/misc/fuse"},
	} {
		devices = append(devices, &inventory.Status{Device: d, Verdict: verdict.Verdict{Healthy: true}})
	}
	r := plugin.Resource{Name: resource, Variable: "IDS", Env: map[string]string{"PCI": "{pci}", "BOTH": "{id}@{pci}", "IDS2": "{id}"}}
	got, err := (&plugin.Endpoint{Resource: r, Host: &device.Host{}}).Answer(devices)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"IDS": "a,b,c", "IDS2": "a,b,c", "PCI": "0000:00:01.0,0000:3b:02.0,", "BOTH": "a@0000:00:01.0,b@0000:3b:02.0,c@",
	} {
		if got.GetEnvs()[name] != want {
			t.Errorf("%s is %q, want %q", name, got.GetEnvs()[name], want)
		}
	}
}
