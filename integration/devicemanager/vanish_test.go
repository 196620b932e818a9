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

// vanishings is the number of rounds under each topology policy. In each round the hardware is unplugged while a pod is
// being admitted.
var vanishings = flag.Int("vanishings", 250, "how often devices vanish during admissions, for each topology policy")

// policies are the topology policies of the kubelet.
var policies = []string{"none", "best-effort", "restricted", "single-numa-node"}

// The kubelet crashes if an ID leaves its list during the Allocate of that ID, or, with a topology policy, while a pod holds
// it. In each round the kubelet receives a list without healthy devices during an Allocate. In half of the rounds, the
// daemon has not received the Allocate yet. In the other half, the daemon has answered, and the kubelet has not received the
// answer.
func TestVanishDuringAllocate(t *testing.T) {
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			t.Parallel() // runs with the other policies
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
				if round%50 == 49 { // a starting kubelet also needs held devices in the list
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

// restartWithout restarts the kubelet while a pod holds a widget that was unplugged. The other widget stays, because the
// kubelet reads the NUMA nodes of held devices, where it may crash, only if some device has a NUMA node.
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

// othersThan returns all widgets except the held one.
func othersThan(held []protocol.Device, all []widget) []widget {
	return slices.DeleteFunc(slices.Clone(all), func(w widget) bool {
		return strings.Contains(held[0].ID, fmt.Sprintf("-W%d-", w.n))
	})
}

// The devices that the daemon prefers are unplugged before the kubelet calls Allocate. The kubelet allocates one of them
// anyway.
func TestVanishDuringPreference(t *testing.T) {
	k, d, p := offeredByProxy(t, Options{}, plain(2))
	for round := range 10 {
		vanish(t, k, d, p, preferAnswered, fmt.Sprintf("p%d", round))
		d.plug(plain(2))
		sees(t, k, widgetResource, 2, 2)
	}
	admit(t, k, pod("last", widgetResource, 2)) // no device was lost
}

// vanish unplugs all widgets while a call for a pod waits. The call continues after the device manager has received the new
// list.
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

// vanishBeside is like vanish, while another pod holds a widget.
func vanishBeside(t *testing.T, k *Kubelet, d *daemon, p *proxy, m moment, uid, keep string) {
	t.Helper()
	admit(t, k, pod(keep, widgetResource, 1))
	vanish(t, k, d, p, m, uid)
	checkHeld(t, k, keep)
	remove(t, k, keep)
}

// admitting starts an admission, and returns a channel with its result.
func admitting(t *testing.T, k *Kubelet, p protocol.Pod) <-chan error {
	t.Helper()
	ctx, result := within(t), make(chan error, 1)
	go func() { result <- k.Admit(ctx, p) }()
	return result
}

// checkHeld checks that the devices of a pod are in the list.
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

// An unplugged device stays in the list as long as a pod holds it, even if the daemon and the kubelet restart. Otherwise the
// kubelet would crash when it admits the pod again.
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

// An unplugged device leaves the list after its pod has ended, even if the kubelet has no reason to write its checkpoint.
// This may take minutes, until the daemon is sure that no pod holds the device.
func TestVanishedIsForgotten(t *testing.T) {
	t.Parallel() // this test only waits
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

// dropGone removes absent devices from a list, like a plugin that drops a device as soon as it is unplugged.
func dropGone(list *api.ListAndWatchResponse) {
	list.Devices = slices.DeleteFunc(list.Devices, func(d *api.Device) bool { return d.Health != api.Healthy })
}

// If the daemon drops an unplugged device from the list, the kubelet crashes, and the tests above would notice this.
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

// checkCrash checks that a call has failed because the kubelet crashed over a missing ID, if this release crashes.
func checkCrash(t *testing.T, err error) {
	t.Helper()
	if !host.Crashes && err == nil {
		return
	}
	if !host.Crashes || !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "nil pointer") {
		t.Fatalf("a held ID has left the list: %v", err)
	}
}

// With a topology policy, a restarting kubelet crashes if the list lacks an ID that a pod holds.
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
