// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

var (
	devices  = flag.Int("devices", 1000, "how many devices the tests of scale have")
	restarts = flag.Int("restarts", 20, "how often the kubelet is restarted")
)

// crowd is a source of many devices. To remove devices, the test moves parts of the tree away and back, which is much faster
// than deleting and creating them.
type crowd struct {
	root    string
	present []udev.Device
	events  chan udev.Event
}

const crowdText = `P: /devices/virtual/%[1]s/%[1]s-%[2]d
N: %[1]s-%[2]d
E: DEVNAME=/dev/%[1]s-%[2]d
E: SUBSYSTEM=%[1]s
E: ID_SERIAL=S%06[2]d
E: ID_SERIAL_SHORT=S%06[2]d
E: MAJOR=240
E: MINOR=%[2]d

`

// newCrowd makes n widgets. kinds is the number of their kinds, or 0 for one kind without a number.
func newCrowd(t *testing.T, n, kinds int) *crowd {
	t.Helper()
	var text strings.Builder
	for i := range n {
		kind := "widget"
		if kinds > 0 {
			kind = fmt.Sprintf("widget%d", i%kinds)
		}
		fmt.Fprintf(&text, crowdText, kind, i)
	}
	r, err := recording.Parse([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{root: t.TempDir(), present: r.Devices(), events: make(chan udev.Event, 1)}
	if err := r.Write(c.root); err != nil {
		t.Fatal(err)
	}
	return c
}

// Enumerate returns all devices. Inspections show which of them are absent.
func (c *crowd) Enumerate() ([]udev.Device, error) { return slices.Clone(c.present), nil }

// toggle removes a device or puts it back.
func (c *crowd) toggle(t *testing.T, n int, there bool) udev.Event {
	t.Helper()
	d := c.present[n]
	in, out := filepath.Join(c.root, d.SysPath), filepath.Join(c.root, fmt.Sprintf("out-%d", n))
	action := "add"
	if !there {
		in, out, action = out, in, "remove"
	}
	if err := os.Rename(out, in); err != nil {
		t.Fatal(err)
	}
	return udev.Event{Action: action, Device: d, Received: time.Now()}
}

// crowded is a daemon with a crowd.
type crowded struct {
	t *testing.T
	*crowd
	setup   setup
	parts   *parts
	kubelet *kubelet
}

func newCrowded(t *testing.T, source udev.Source, c *crowd, kinds int) *crowded {
	t.Helper()
	dir := shortDir(t)
	h := &crowded{t: t, crowd: c, setup: setup{
		source: source, root: c.root, dir: filepath.Join(dir, "k"), state: filepath.Join(dir, "s"), kinds: kinds, shares: 1,
		care: resourceConfig(config.None, config.None, config.WhenStart, 0), log: slog.New(slog.DiscardHandler),
	}}
	if err := os.Mkdir(h.setup.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.parts, err = h.setup.run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.parts.stop(); err != nil {
			t.Error(err)
		}
	})
	h.boot()
	t.Cleanup(func() { h.kubelet.stop() })
	return h
}

// boot starts the kubelet.
func (h *crowded) boot() {
	h.t.Helper()
	k, err := startKubelet(h.setup.dir, func() []string { return nil })
	if err != nil {
		h.t.Fatal(err)
	}
	h.kubelet = k
}

// healthy returns the number of healthy devices of all resources. ok reports whether all resources are registered.
func (h *crowded) healthy() (n int, ok bool) {
	for resource := range maps.Values(h.setup.widgetKinds()) {
		list := h.kubelet.view(resource)
		if list == nil {
			return 0, false
		}
		for _, health := range list {
			if health == pluginapi.Healthy {
				n++
			}
		}
	}
	return n, true
}

// waitHealthy waits for a number of healthy devices.
func (h *crowded) waitHealthy(want int) {
	h.t.Helper()
	if err := eventually(func() error {
		if got, ok := h.healthy(); !ok || got != want {
			return fmt.Errorf("%d are healthy, not %d; all registered: %v", got, want, ok)
		}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	if err := h.kubelet.failure(); err != nil {
		h.t.Fatal(err)
	}
}

// TestManyDevices uses thousands of devices in one resource or in ten. Every change happens right after a kubelet
// restart, and a hundred restarts must not leak anything.
func TestManyDevices(t *testing.T) {
	noLeaks(t)
	for _, kinds := range []int{0, 10} {
		t.Run(fmt.Sprintf("%d kinds", max(1, kinds)), func(t *testing.T) {
			c := newCrowd(t, *devices, kinds)
			source := newHints(c)
			h := newCrowded(t, source, c, kinds)
			h.waitHealthy(*devices)
			h.restart(source, 0)
			before, began := h.alone(), time.Now()
			for n := range *restarts {
				h.restart(source, n)
			}
			t.Logf("%d devices in %d resources: %d restarts with a change each in %v",
				*devices, max(1, kinds), *restarts, time.Since(began).Round(time.Millisecond))
			h.kubelet.stop()
			if err := noMoreThan(t, before); err != nil {
				t.Errorf("after the restarts: %v", err)
			}
		})
	}
}

// alone returns the resources that are in use while no kubelet runs, as soon as they no longer change. While a kubelet
// runs, a resource may have two streams on a busy machine, because the daemon registers again if a stream is not opened
// within a second.
func (h *crowded) alone() (last resources) {
	h.t.Helper()
	h.kubelet.stop()
	defer h.boot()
	same := 0
	for tick := time.Tick(10 * time.Millisecond); same < 100; same++ {
		<-tick
		if now := inUse(h.t); now != last {
			last, same = now, 0
		}
	}
	return last
}

// restart restarts the kubelet while a device is removed, and puts the device back when the kubelet has noticed.
func (h *crowded) restart(source *hints, n int) {
	h.t.Helper()
	n %= len(h.present)
	h.kubelet.stop()
	source.send(h.toggle(h.t, n, false))
	h.boot()
	h.waitHealthy(len(h.present) - 1)
	source.send(h.toggle(h.t, n, true))
	h.waitHealthy(len(h.present))
}
