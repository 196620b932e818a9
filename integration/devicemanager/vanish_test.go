// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/integration/devicemanager/host"
	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// vanishings is how often the hardware goes away under each topology policy,
// each time while a pod is being admitted.
var vanishings = flag.Int("vanishings", 250, "how often devices vanish during admissions, for each topology policy")

// policies are the topology policies of the kubelet.
var policies = []string{"none", "best-effort", "restricted", "single-numa-node"}

// The kubelet crashes if an ID leaves its list during the Allocate of that ID, or, with a topology policy, while a pod
// holds it. In each round it takes a list without a healthy device while an Allocate is under way. In half of them the
// daemon has not heard of that Allocate yet. In the other half it has answered and the kubelet does not know.
func TestVanishDuringAllocate(t *testing.T) {
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			t.Parallel() // with the other policies
			k, d, p := offeredByProxy(t, Options{TopologyPolicy: policy, NUMANodes: 2}, aligned(2))
			hits, began := map[moment]int{}, time.Now()
			for round := range *vanishings {
				uid, m := fmt.Sprintf("p%d", round), []moment{allocateAsked, allocateAnswered}[round%2]
				if keep := fmt.Sprintf("k%d", round); round%4 < 2 {
					vanish(t, k, d, p, m, uid)
				} else {
					vanishBeside(t, k, d, p, m, uid, keep)
				}
				hits[m]++
				if round%50 == 49 { // what a pod holds has to be in the list of a kubelet that starts, too
					restartWithout(t, k, d, fmt.Sprintf("r%d", round))
				}
				d.plug(aligned(2))
				sees(t, k, widgetResource, 2, 2)
			}
			t.Logf("devices vanished during %v in %v", hits, time.Since(began).Round(time.Second))
			if n := hits[allocateAsked] + hits[allocateAnswered]; n != *vanishings || hits[allocateAnswered] != n/2 {
				t.Errorf("devices vanished during %v, in %d rounds", hits, *vanishings)
			}
		})
	}
}

// restartWithout restarts the kubelet while a pod holds a widget that is gone. The other widget stays. The kubelet asks
// for the NUMA nodes of held devices, which is where it may crash, only as long as a device has a NUMA node.
func restartWithout(t *testing.T, k *Kubelet, d *daemon, uid string) {
	t.Helper()
	d.plug(aligned(2))
	sees(t, k, widgetResource, 2, 2)
	admit(t, k, pod(uid, widgetResource, 1))
	run(t, k, uid, "main")
	d.plug(othersThan(assigned(t, k, uid), aligned(2)))
	sees(t, k, widgetResource, 2, 1)
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := k.FirstBatch(within(t)); err != nil {
		t.Fatal(err)
	}
	sees(t, k, widgetResource, 2, 1)
	checkHeld(t, k, uid)
	remove(t, k, uid)
}

// othersThan are the widgets but for the one that is held.
func othersThan(held []protocol.Device, all []widget) []widget {
	return slices.DeleteFunc(slices.Clone(all), func(w widget) bool {
		return strings.Contains(held[0].ID, fmt.Sprintf("-W%d-", w.n))
	})
}

// Devices that the daemon has just preferred are gone when the kubelet asks for
// one of them, which it does all the same.
func TestVanishDuringPreference(t *testing.T) {
	k, d, p := offeredByProxy(t, Options{}, plain(2))
	for round := range 10 {
		vanish(t, k, d, p, preferAnswered, fmt.Sprintf("p%d", round))
		d.plug(plain(2))
		sees(t, k, widgetResource, 2, 2)
	}
	admit(t, k, pod("last", widgetResource, 2)) // nothing was lost
}

// vanish unplugs all widgets while a call for a pod waits, and lets it go on
// once the device manager has the list that came of it.
func vanish(t *testing.T, k *Kubelet, d *daemon, p *proxy, m moment, uid string) {
	t.Helper()
	h := p.hold(m)
	admitted := admitting(t, k, pod(uid, widgetResource, 1))
	h.await(t)
	d.plug(nil)
	allocatable(t, k, 0)
	h.release()
	err := <-admitted
	var why *protocol.Rejection
	switch {
	case m == allocateAnswered && err == nil:
		checkHeld(t, k, uid)
		remove(t, k, uid)
	case m != allocateAnswered && errors.As(err, &why) && why.Reason == "UnexpectedAdmissionError":
	default:
		t.Fatalf("%s, the devices unplugged: %v", m, err)
	}
}

// vanishBeside is vanish while another pod holds a widget.
func vanishBeside(t *testing.T, k *Kubelet, d *daemon, p *proxy, m moment, uid, keep string) {
	t.Helper()
	admit(t, k, pod(keep, widgetResource, 1))
	vanish(t, k, d, p, m, uid)
	checkHeld(t, k, keep)
	remove(t, k, keep)
}

// admitting is the result of an admission that takes its time.
func admitting(t *testing.T, k *Kubelet, p protocol.Pod) <-chan error {
	t.Helper()
	ctx, result := within(t), make(chan error, 1)
	go func() { result <- k.Admit(ctx, p) }()
	return result
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

// A held device that is gone stays in the list over restarts of both sides, and for as long as it is held. The kubelet
// would crash otherwise when it admits the pod again.
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

// A device that no pod holds any more leaves the list in the end, also if the kubelet has no reason to write its
// checkpoint. The daemon may take its time to be sure.
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

// dropGone makes of each list what a plugin would send that drops a device once
// it is gone.
func dropGone(list *api.ListAndWatchResponse) {
	list.Devices = slices.DeleteFunc(list.Devices, func(d *api.Device) bool { return d.Health != api.Healthy })
}

// The tests above would see the crash. With a daemon that drops a device that is gone, the kubelet crashes.
func TestHarnessCrashByVanishing(t *testing.T) {
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			k, d, p := offeredByProxy(t, Options{TopologyPolicy: policy, NUMANodes: 2}, aligned(2))
			p.editLists(dropGone)
			h := p.hold(allocateAnswered)
			admitted := admitting(t, k, pod("p1", widgetResource, 1))
			h.await(t)
			d.plug(nil)
			sees(t, k, widgetResource, 0, 0)
			h.release()
			checkCrash(t, <-admitted)
		})
	}
}

// checkCrash asserts that a call has found a kubelet that died of a missing
// ID, if its release does.
func checkCrash(t *testing.T, err error) {
	t.Helper()
	if !host.Crashes && err == nil {
		return
	}
	if !host.Crashes || !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "nil pointer") {
		t.Fatalf("a held ID has left the list: %v", err)
	}
}

// So does one that restarts without an ID in the list that a pod holds, unless
// there is no topology policy to care for.
func TestHarnessCrashAtRestart(t *testing.T) {
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			k, d, p := offeredByProxy(t, Options{TopologyPolicy: policy, NUMANodes: 2}, aligned(2))
			admit(t, k, pod("p1", widgetResource, 1))
			run(t, k, "p1", "main")
			p.editLists(dropGone)
			d.plug(othersThan(assigned(t, k, "p1"), aligned(2)))
			sees(t, k, widgetResource, 1, 1)
			if err := k.Restart(within(t)); err != nil {
				t.Fatal(err)
			}
			err := k.FirstBatch(within(t))
			if policy != "none" && host.Crashes {
				checkCrash(t, err)
			} else if t.Logf("first batch: %v", err); errors.Is(err, ErrDied) {
				t.Error("the kubelet died")
			}
		})
	}
}
