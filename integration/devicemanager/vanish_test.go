// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/devicemanager/host"
	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// vanishings is how often the hardware goes away under each topology policy,
// while pods come and go.
var vanishings = flag.Int("vanishings", 150, "how often devices vanish during admissions, for each topology policy")

// The kubelet crashes if an ID leaves its list during the Allocate of that ID,
// or, with a topology policy, while a pod holds it. Here devices vanish in the
// middle of a stream of admissions: in a few rounds of a hundred the list comes
// while the RPC is under way.
func TestVanishDuringAllocate(t *testing.T) {
	for _, policy := range []string{"none", "best-effort", "restricted", "single-numa-node"} {
		t.Run(policy, func(t *testing.T) {
			k, d := offered(t, Options{TopologyPolicy: policy, NUMANodes: 2}, aligned(2))
			pods, began := 0, time.Now()
			for round := range *vanishings {
				pods += vanish(t, k, d, fmt.Sprintf("p%d", round), round%2 == 1)
				if round%50 == 49 { // what a pod holds has to be in the list of a kubelet that starts, too
					restartWithout(t, k, d, fmt.Sprintf("r%d", round))
				}
				d.plug(aligned(2))
				sees(t, k, widgetResource, 2, 2)
			}
			t.Logf("%d pods were admitted in %d rounds, in %v", pods, *vanishings, time.Since(began).Round(time.Second))
		})
	}
}

// restartWithout restarts the kubelet while a pod holds a widget that is gone.
func restartWithout(t *testing.T, k *Kubelet, d *daemon, uid string) {
	t.Helper()
	d.plug(aligned(2))
	sees(t, k, widgetResource, 2, 2)
	admit(t, k, pod(uid, widgetResource, 1))
	run(t, k, uid, "main")
	d.plug(nil)
	allocatable(t, k, 0)
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := k.FirstBatch(within(t)); err != nil {
		t.Fatal(err)
	}
	sees(t, k, widgetResource, 2, 0)
	checkHeld(t, k, uid)
	remove(t, k, uid)
}

// vanish unplugs all widgets while pods come and go, until none is admitted any
// more, and says how many were. If keep is set, another pod holds a widget all
// that time.
func vanish(t *testing.T, k *Kubelet, d *daemon, prefix string, keep bool) int {
	t.Helper()
	if keep {
		admit(t, k, pod(prefix, widgetResource, 1))
		defer remove(t, k, prefix)
	}
	d.plug(nil)
	for n := 0; ; n++ {
		uid := fmt.Sprintf("%s-%d", prefix, n)
		err := k.Admit(within(t), pod(uid, widgetResource, 1))
		var why *protocol.Rejection
		switch {
		case err == nil:
			remove(t, k, uid)
		case errors.As(err, &why):
			allocatable(t, k, 0)
			if keep {
				checkHeld(t, k, prefix)
			}
			return n
		default:
			t.Fatal(err)
		}
	}
}

// checkHeld asserts that what a pod holds is in the list.
func checkHeld(t *testing.T, k *Kubelet, uid string) {
	t.Helper()
	all := devices(t, k)
	for _, held := range assigned(t, k, uid) {
		if d, ok := all[held.ID]; !ok {
			t.Errorf("%s is held by %s and not in the list: %v", held.ID, uid, all)
		} else if len(d.NUMA) != len(held.NUMA) {
			t.Errorf("%s: NUMA nodes %v instead of %v", held.ID, d.NUMA, held.NUMA)
		}
	}
}

// A held device that is gone stays in the list over restarts of both sides, and
// for as long as it is held: else the kubelet crashes when it admits the pod
// again.
func TestVanishedAcrossRestarts(t *testing.T) {
	k, d := offered(t, Options{TopologyPolicy: "single-numa-node", NUMANodes: 2}, aligned(2))
	admit(t, k, pod("p1", widgetResource, 1))
	admit(t, k, pod("p2", widgetResource, 1))
	run(t, k, "p1", "main")
	run(t, k, "p2", "main")
	d.plug(nil)
	sees(t, k, widgetResource, 2, 0)

	d.kill()
	sees(t, k, widgetResource, 2, 0)
	d.start()
	eventually(t, "daemon that has registered again", func() error {
		if _, err := k.Run(within(t), "p1", "main"); err == nil || !strings.Contains(err.Error(), "nhealthy") {
			return fmt.Errorf("start of a container says %v", err)
		}
		return nil
	})
	checkHeld(t, k, "p1")
	checkHeld(t, k, "p2")

	for range 3 {
		if err := k.Restart(within(t)); err != nil {
			t.Fatal(err)
		}
		if err := k.FirstBatch(within(t)); err != nil {
			t.Fatal(err)
		}
		sees(t, k, widgetResource, 2, 0)
		checkHeld(t, k, "p1")
	}

	d.plug(aligned(2))
	sees(t, k, widgetResource, 2, 2)
	run(t, k, "p1", "main")
}

// What nobody holds any more leaves the list in the end, also if the kubelet
// has no reason to write its checkpoint. The daemon may take its time to be
// sure.
func TestVanishedIsForgotten(t *testing.T) {
	t.Parallel() // it only waits
	k, d := offered(t, Options{}, plain(2))
	admit(t, k, pod("p1", widgetResource, 2))
	d.plug(plain(1))
	sees(t, k, widgetResource, 2, 1)
	remove(t, k, "p1")
	if host.KeepsLast {
		admit(t, k, protocol.Pod{UID: "p2", Namespace: "default", Name: "p2", Containers: []protocol.Container{{Name: "main"}}})
	}
	if _, err := k.Wait(t.Context(), widgetResource, protocol.Counts{Capacity: 1, Allocatable: 1}, time.Minute); err != nil {
		t.Error(err)
	}
}
