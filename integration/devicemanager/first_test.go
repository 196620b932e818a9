// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"maps"
	"sync"
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// heard records the lists of all streams. The view of the device manager is not enough, because a test may miss a list
// between two reads.
type heard struct {
	mu     sync.Mutex
	lists  []string
	firsts map[string]int // number of streams by resource
}

// hear records each list that differs from the expected one, and the number of streams.
func (h *heard) hear(p *proxy, want map[string]map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists, h.firsts = nil, map[string]int{}
	p.hearLists(func(resource string, nth int, list *api.ListAndWatchResponse) {
		health := map[string]string{}
		for _, d := range list.GetDevices() {
			health[d.GetID()] = d.GetHealth()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if nth == 0 {
			h.firsts[resource]++
		}
		if !maps.Equal(health, want[resource]) || len(list.GetDevices()) != len(health) {
			h.lists = append(h.lists, fmt.Sprintf("list %d of a stream of %s: %v instead of %v", nth, resource, health, want[resource]))
		}
	})
}

// check checks that each resource had at least the given number of streams, each with the whole list, and that no list
// differed.
func (h *heard) check(t *testing.T, when string, streams int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, list := range h.lists {
		t.Errorf("%s: %s", when, list)
	}
	for _, resource := range []string{widgetResource, "example.org/sprocket"} {
		if h.firsts[resource] < streams {
			t.Errorf("%s: %d streams of %s, want %d at least", when, h.firsts[resource], resource, streams)
		}
	}
}

// wholeLists returns the expected lists for widgets of which some are gone, by resource and ID.
func wholeLists(hardware []widget, gone ...string) map[string]map[string]string {
	want := map[string]map[string]string{}
	for _, w := range hardware {
		if want[w.resource()] == nil {
			want[w.resource()] = map[string]string{}
		}
		want[w.resource()][w.id()] = api.Healthy
	}
	for _, id := range gone {
		want[widgetResource][id] = api.Unhealthy
	}
	return want
}

// The daemon sends no list before it knows all devices. The first list of each stream has all devices, and so does each
// later list while nothing changes. The test covers the start of the daemon, each new kubelet, and a start while pods
// have devices, even if one of these is gone.
func TestFirstListIsWhole(t *testing.T) {
	hardware := append(aligned(6), widget{n: 10, numa: -1, kind: "sprocket"}, widget{n: 11, numa: -1, kind: "sprocket"})
	all, h := wholeLists(hardware), &heard{}
	k, p := behindProxy(t, Options{})
	h.hear(p, all)
	d := newDaemon(t, k.options.Dir, hardware)
	both := func(allocatable int64) {
		t.Helper()
		sees(t, k, widgetResource, 6, allocatable)
		sees(t, k, "example.org/sprocket", 2, min(2, allocatable))
	}
	both(6)
	h.check(t, "start", 1)

	admit(t, k, pod("p1", widgetResource, 2))
	run(t, k, "p1", "main")
	h.hear(p, all)
	for range 3 {
		restart(t, k)
		both(6)
	}
	h.check(t, "restarts of the kubelet", 3)

	h.hear(p, all)
	for _, end := range []func(){d.kill, d.stop, d.kill, d.stop} {
		end()
		both(0)
		d.start()
		both(6)
	}
	h.check(t, "restarts of the daemon", 4)

	held := assigned(t, k, "p1")
	d.plug(othersThan(held, hardware))
	both(5)
	less := wholeLists(hardware, held[0].ID)
	h.hear(p, less)
	for _, end := range []func(){d.kill, d.stop} {
		end()
		both(0)
		d.start()
		both(5)
	}
	restart(t, k)
	both(5)
	h.check(t, "restarts while a pod has what is gone", 3)
}
