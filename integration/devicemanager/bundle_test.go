// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/devicemanager/host"
	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// pairs is the resource of bundles of a widget and a sprocket on one NUMA node.
const (
	pairResource = "example.org/pair"
	pairs        = `
[[resource]]
name = "example.org/pair"
class = "bundle"
members = ["example.org/widget", "example.org/sprocket"]
near = "numa"
`
)

// halves returns the widgets and sprockets with these numbers. Even numbers are on NUMA node 0, odd numbers on node 1.
func halves(widgetNumbers, sprocketNumbers []int) (list []widget) {
	for _, n := range widgetNumbers {
		list = append(list, widget{n: n, numa: n % 2})
	}
	for _, n := range sprocketNumbers {
		list = append(list, widget{n: n, numa: n % 2, kind: "sprocket"})
	}
	return list
}

// paired returns a node whose daemon offers two bundles.
func paired(t *testing.T) (*Kubelet, *daemon) {
	t.Helper()
	k := newNode(t, Options{TopologyPolicy: "single-numa-node", NUMANodes: 2})
	d := newDaemonOf(t, shortDir(t), k.options.Dir, widgets+sprockets+pairs, halves([]int{0, 1}, []int{0, 1}))
	sees(t, k, pairResource, 2, 2)
	return k, d
}

// pairID returns the ID of the bundle with widget n.
func pairID(n int) string { return "bundle-" + widget{n: n}.id() }

// TestBundlesThroughHotplug checks that a held bundle stays in the list, even if members are unplugged and the daemon and
// the kubelet restart. Otherwise the kubelet would crash with this topology policy. After its pod has ended, the bundle is
// dissolved, and its remaining member joins the next bundle.
func TestBundlesThroughHotplug(t *testing.T) {
	t.Parallel() // this test waits until a device certainly is free
	k, d := paired(t)
	for id, device := range devices(t, k) {
		if n := slices.Index([]string{pairID(0), pairID(1)}, id); n < 0 || !slices.Equal(device.NUMA, []int64{int64(n)}) {
			t.Errorf("%s is in the list with the NUMA nodes %v", id, device.NUMA)
		}
	}
	admit(t, k, pod("p0", pairResource, 1))
	admit(t, k, pod("p1", pairResource, 1))
	held := assigned(t, k, "p0")[0].ID
	n := slices.Index([]string{pairID(0), pairID(1)}, held)
	got := run(t, k, "p0", "main")
	if env := got.Env["METALPLUG_EXAMPLE_ORG_SPROCKET"]; len(got.Nodes) != 2 || env != (widget{n: n, kind: "sprocket"}).id() {
		t.Errorf("the container of %s gets %v and the sprocket %q", held, got.Nodes, env)
	}
	listed := func(capacity, allocatable int64) {
		t.Helper()
		sees(t, k, pairResource, capacity, allocatable)
		if ids := slices.Sorted(maps.Keys(devices(t, k))); !slices.Contains(ids, held) {
			t.Fatalf("%s is held and not in the list: %v", held, ids)
		}
	}
	// The sprocket of the bundle is unplugged. Another suitable sprocket does not replace it.
	d.plug(halves([]int{0, 1}, []int{n + 2, 1 - n}))
	listed(2, 1)
	restarted := func() {
		t.Helper()
		if err := k.Restart(within(t)); err != nil {
			t.Fatal(err)
		}
		if err := k.FirstBatch(within(t)); err != nil {
			t.Fatalf("a pod is lost: %v", err)
		}
	}
	run(t, k, "p1", "main") // a pod that does not run would be rejected because of its unhealthy device
	restarted()
	listed(2, 1)
	d.plug(halves([]int{1 - n}, []int{n + 2, 1 - n})) // the widget of the bundle is gone too
	d.kill()
	d.start()
	d.awaitReady()
	listed(2, 1)
	restarted()
	listed(2, 1)
	d.plug(halves([]int{0, 1}, []int{n, n + 2, 1 - n}))
	listed(2, 2)
	run(t, k, "p0", "main")
	rejected(t, k, pod("p2", pairResource, 1), "TopologyAffinityError")

	d.plug(halves([]int{0, 1}, []int{n + 2, 1 - n}))
	listed(2, 1)
	remove(t, k, "p0")
	if host.KeepsLast {
		admit(t, k, protocol.Pod{UID: "last", Namespace: "default", Name: "last", Containers: []protocol.Container{{Name: "main"}}})
	}
	eventuallyIn(t, time.Minute, "the pair with the other sprocket", func() error {
		device, ok := devices(t, k)[held]
		if !ok || device.Health != "Healthy" {
			return fmt.Errorf("%+v", device)
		}
		return nil
	})
	admit(t, k, pod("p3", pairResource, 1))
	if env := run(t, k, "p3", "main").Env["METALPLUG_EXAMPLE_ORG_SPROCKET"]; env != (widget{n: n + 2, kind: "sprocket"}).id() {
		t.Errorf("the next pod gets the sprocket %q", env)
	}
}

// TestBundlesAppearBehindPods adds a bundle resource by a reload, while pods hold devices under their own resources. As each
// pod ends, its devices join bundles.
func TestBundlesAppearBehindPods(t *testing.T) {
	t.Parallel() // this test waits until a device certainly is free
	k := newNode(t, Options{TopologyPolicy: "restricted", NUMANodes: 2})
	d := newDaemonOf(t, shortDir(t), k.options.Dir, widgets+sprockets, halves([]int{0, 1}, []int{0, 1}))
	d.awaitReady()
	sees(t, k, widgetResource, 2, 2)
	sees(t, k, "example.org/sprocket", 2, 2)
	admit(t, k, pod("p0", widgetResource, 1))
	run(t, k, "p0", "main")
	held := assigned(t, k, "p0")[0].ID
	d.reload(widgets + sprockets + pairs)
	d.awaitReady()
	eventuallyIn(t, time.Minute, "the pair that no pod is in the way of", func() error {
		list := devices(t, k)
		if _, ok := list[held]; !ok {
			t.Fatalf("%s is held and not in the list: %v", held, list)
		}
		count := 0
		for id, device := range list {
			if strings.HasPrefix(id, "bundle-") && device.Health == "Healthy" {
				count++
			}
		}
		if count != 1 || len(list) != 2 {
			return fmt.Errorf("%v", list)
		}
		return nil
	})
	run(t, k, "p0", "main")
	remove(t, k, "p0")
	if host.KeepsLast {
		admit(t, k, protocol.Pod{UID: "last", Namespace: "default", Name: "last", Containers: []protocol.Container{{Name: "main"}}})
	}
	eventuallyIn(t, time.Minute, "both pairs and nothing else", func() error {
		if list := devices(t, k); len(list) != 2 || list[pairID(0)].Health != "Healthy" || list[pairID(1)].Health != "Healthy" {
			return fmt.Errorf("%v", list)
		}
		return nil
	})
}
