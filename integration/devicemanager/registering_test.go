// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"errors"
	"fmt"
	"testing"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// The kubelet is killed at each moment of a registration: before the call arrives, while the kubelet requests the options,
// and before its answer arrives. The daemon notices this by the end of its call, or only when the next kubelet starts. The
// next kubelet must find all devices, and the pod with a device keeps it.
func TestKubeletKilledDuringRegister(t *testing.T) {
	moments := []moment{registerAsked, optionsAsked, registerAnswered}
	k, d, p := offeredByProxy(t, Options{FirstBatch: OnDemand}, plain(3))
	admit(t, k, pod("holds", widgetResource, 1))
	run(t, k, "holds", "main")
	k.SetState("holds", "main", protocol.Exited) // a running container would be admitted without its device
	for round := range 6 * len(moments) {
		h, late := p.hold(moments[round%len(moments)]), round/len(moments)%2 == 1
		restart(t, k)
		h.await(t)
		k.Kill()
		if !late {
			h.release()
		}
		bootAgain(t, k, h.moment, 3)
		checkHeld(t, k, "holds")
		checkAfter(t, k, fmt.Sprintf("p%d", round), false)
		checkSockets(t, d)
	}
	run(t, k, "holds", "main")
}

// bootAgain starts the next kubelet, and checks that it finds all widgets and rejects no pod.
func bootAgain(t *testing.T, k *Kubelet, m moment, widgets int64) {
	t.Helper()
	if err := k.Boot(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Wait(within(t), widgetResource, protocol.Counts{Capacity: widgets, Allocatable: widgets}, patience); err != nil {
		t.Fatalf("killed at %q: %v", m, err)
	}
	if err := k.FirstBatch(within(t)); err != nil {
		t.Errorf("killed at %q: lost: %v", m, err)
	}
}

// The kubelet is killed after the daemon has answered GetPreferredAllocation, and before the kubelet has read the answer. It
// has then allocated nothing, and the next kubelet may allocate any device.
func TestKubeletKilledDuringPreference(t *testing.T) {
	k, d, p := offeredByProxy(t, Options{FirstBatch: OnDemand}, plain(2))
	for round := range 6 {
		uid, h := fmt.Sprintf("p%d", round), p.hold(preferAnswered)
		admitted, _ := starting(t, k, uid)
		h.await(t)
		k.Kill()
		if err := <-admitted; !errors.Is(err, ErrDied) {
			t.Fatalf("%s, the kubelet killed: %v", h.moment, err)
		}
		bootAgain(t, k, h.moment, 2)
		checkAfter(t, k, uid, false)
		checkSockets(t, d)
	}
}
