// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// reload writes a configuration and makes the daemon read it.
func (d *daemon) reload(resources string) {
	d.t.Helper()
	d.configure(resources)
	d.must(d.cmd.Process.Signal(syscall.SIGHUP))
}

// A reload affects only the resources that changed.
func TestReload(t *testing.T) {
	k, d := offered(t, Options{}, append(plain(2), widget{n: 0, kind: "sprocket", numa: -1}, widget{n: 0, kind: "gear", numa: -1}))
	sees(t, k, "example.org/sprocket", 1, 1)
	admit(t, k, pod("p1", widgetResource, 1))

	gears := strings.ReplaceAll(sprockets, "sprocket", "gear")
	d.reload(widgets + sprockets + gears)
	sees(t, k, "example.org/gear", 1, 1)

	d.reload(widgets + gears)
	sees(t, k, "example.org/sprocket", 1, 0) // the kubelet forgets the resource after five minutes

	d.reload("this is no TOML")
	d.plug(append(plain(3), widget{n: 0, kind: "gear", numa: -1}))
	sees(t, k, widgetResource, 3, 3)
	sees(t, k, "example.org/gear", 1, 1)
	if n := registrations(k, widgetResource); n != 1 {
		t.Errorf("%s was registered %d times and had not changed", widgetResource, n)
	}
	run(t, k, "p1", "main")
}

// After a reload, the same process registers a changed resource again. If the device manager is still processing the end of
// the old stream, it may disconnect the new one (Kubernetes issue 121994, until 1.36), and the daemon must register once
// more. This must be rare, and the daemon must recover.
func TestReloadOfAResource(t *testing.T) {
	k, d := offered(t, Options{}, plain(2))
	const rounds = 20
	for i := range rounds {
		d.reload(shared(i%2 + 2))
		sees(t, k, widgetResource, int64(2*(i%2+2)), int64(2*(i%2+2)))
	}
	eventually(t, "an open stream", func() error {
		uid := fmt.Sprintf("p%d", time.Now().UnixNano()) // a rejected pod never comes back
		return k.Admit(within(t), pod(uid, widgetResource, 1))
	})
	again := registrations(k, widgetResource) - rounds - 1
	t.Logf("cut off after %d of %d reloads", again, rounds)
	if again > rounds/10 {
		t.Errorf("cut off after %d of %d reloads", again, rounds)
	}
}

// shared returns a configuration that offers each widget n times.
func shared(n int) string {
	return strings.Replace(widgets, "class", fmt.Sprintf("shares = %d\nclass", n), 1)
}

// The number of shares is changed while the daemon is stopped. Pods keep the devices that they hold under the old IDs. Some
// releases of the device manager crash if an allocated ID is missing.
func TestSharesChangedWhilePodsHoldThem(t *testing.T) {
	k := newNode(t, Options{})
	d := newDaemon(t, k.options.Dir, plain(2))
	d.awaitReady()
	d.stop()
	d.configure(shared(3))
	d.start()
	sees(t, k, widgetResource, 6, 6)
	admit(t, k, pod("p1", widgetResource, 1))
	run(t, k, "p1", "main")
	d.stop()
	d.configure(widgets)
	d.start()
	sees(t, k, widgetResource, 3, 1) // two free devices and the held share; no other pod gets the held device
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	sees(t, k, widgetResource, 3, 1)
	if err := k.FirstBatch(within(t)); err != nil {
		t.Fatalf("lost: %v", err)
	}
	run(t, k, "p1", "main")
	admit(t, k, pod("p2", widgetResource, 1))
	if err := k.Admit(within(t), pod("p3", widgetResource, 1)); err == nil {
		t.Error("a device of which a pod holds a share was given to another whole")
	}
}

// Each share is offered as a separate device, with the health of the shared device.
func TestShares(t *testing.T) {
	k := newNode(t, Options{})
	d := newDaemon(t, k.options.Dir, plain(2))
	d.awaitReady()
	d.stop()
	d.configure(shared(3))
	d.start()
	sees(t, k, widgetResource, 6, 6)
	admit(t, k, pod("p1", widgetResource, 4))
	got := run(t, k, "p1", "main")
	if ids := strings.Split(got.Env["METALPLUG_EXAMPLE_ORG_WIDGET"], ","); len(ids) != 2 {
		t.Errorf("four shares of two devices: %v", got.Env)
	}
	checkNodes(t, got, 2)
	d.plug(plain(1))
	sees(t, k, widgetResource, 6, 3)
}

// A resource is renamed while a pod holds devices under the old name. The free devices have the new name immediately. The
// devices of the pod have it after the pod has ended.
func TestRenamedWhileHeld(t *testing.T) {
	k, d := offered(t, Options{}, plain(8))
	d.must(os.Mkdir(d.cgroup("p1"), 0o755))
	admit(t, k, pod("p1", widgetResource, 3))
	run(t, k, "p1", "main")
	const renamed = "example.org/gadget"
	d.reload(strings.Replace(widgets, widgetResource, renamed, 1))
	sees(t, k, renamed, 5, 5)
	// The device manager of v1.31 considers the devices of the last admitted pod as allocated until it admits another pod
	// (pkg/kubelet/cm/devicemanager, manager.go, pendingAdmissionPod).
	admit(t, k, protocol.Pod{UID: "p0", Namespace: "default", Name: "p0", Containers: []protocol.Container{{Name: "main"}}})
	remove(t, k, "p1")
	d.must(os.Remove(d.cgroup("p1")))
	sees(t, k, renamed, 8, 8)
	admit(t, k, pod("p2", renamed, 8))
}
