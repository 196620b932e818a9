// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// grace is longer than the time for which a device manager remembers a resource whose plugin has ended.
const grace = 5*time.Minute + time.Second

// The daemon is stopped for longer than the device manager remembers its resource. In some cases the kubelet restarts in
// between. No container starts until the daemon runs again. Then each pod has the same devices as before, including those
// that were unplugged in between.
func TestForgotten(t *testing.T) {
	for name, pass := range map[string]func(*testing.T, *Kubelet){
		"kubelet stays": forget,
		"kubelet restarts after that": func(t *testing.T, k *Kubelet) {
			forget(t, k)
			restart(t, k)
		},
		"kubelet restarts before that": func(t *testing.T, k *Kubelet) {
			restart(t, k)
			sees(t, k, widgetResource, 0, 0) // the kubelet's checkpoint has the resource, but not the devices
			forget(t, k)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, d := offered(t, Options{}, plain(4))
			for _, uid := range []string{"p1", "p2"} {
				admit(t, k, pod(uid, widgetResource, 1))
				run(t, k, uid, "main")
			}
			before, held := devices(t, k), assigned(t, k, "p1")
			d.stop()
			if own, _ := d.sockets(); len(own) != 0 { // the kubelet would read such a file as a checkpoint
				t.Errorf("it has left %v", own)
			}
			sees(t, k, widgetResource, 4, 0)
			pass(t, k)
			if err := k.FirstBatch(within(t)); err != nil {
				t.Fatalf("lost: %v", err)
			}
			checkForgotten(t, k)
			if _, err := k.Run(within(t), "p1", "main"); err == nil || !strings.Contains(err.Error(), "endpoint not found") {
				t.Errorf("a container starts without a plugin: %v", err)
			}
			d.plug(othersThan(held, plain(4)))
			d.start()
			sees(t, k, widgetResource, 4, 3)
			d.plug(plain(4))
			sees(t, k, widgetResource, 4, 4)
			if after := devices(t, k); !sameIDs(before, after) {
				t.Errorf("devices when it is back: %v instead of %v", after, before)
			}
			checkKept(t, k, held)
			checkSockets(t, d)
		})
	}
}

// forget lets the grace period of the widgets pass. The device manager checks the grace period only when it is queried for
// its capacity.
func forget(t *testing.T, k *Kubelet) {
	t.Helper()
	eventually(t, "the end of the plugin", func() error { return k.Age(within(t), widgetResource, grace) })
	checkForgotten(t, k)
}

// checkForgotten checks that the device manager no longer knows the widgets.
func checkForgotten(t *testing.T, k *Kubelet) {
	t.Helper()
	counts, err := k.Capacity(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := counts[widgetResource]; ok {
		t.Fatalf("the device manager has not forgotten the widgets: %+v", n)
	}
}

// checkKept checks that pod p1 has its devices, and that another pod gets only devices that neither p1 nor p2 has.
func checkKept(t *testing.T, k *Kubelet, held []protocol.Device) {
	t.Helper()
	if now := assigned(t, k, "p1"); len(now) != 1 || now[0].ID != held[0].ID {
		t.Errorf("p1 has %v instead of %v", now, held)
	}
	rejected(t, k, pod("p3", widgetResource, 3), "UnexpectedAdmissionError")
	admit(t, k, pod("p4", widgetResource, 2))
	for _, uid := range []string{"p1", "p2", "p4"} {
		run(t, k, uid, "main")
	}
}
