// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// idFormat is the format of an ID, which is a CDI device name of at most 63 bytes.
var idFormat = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.:-]{0,61}[A-Za-z0-9])?$`)

func TestStart(t *testing.T) {
	k, d := offered(t, Options{}, append(plain(3), widget{n: 7, kind: "sprocket", numa: -1}))
	sees(t, k, "example.org/sprocket", 1, 1)
	for id := range devices(t, k) {
		if !idFormat.MatchString(id) {
			t.Errorf("ID %q does not fit for CDI", id)
		}
	}
	checkSockets(t, d)
	own, _ := d.sockets()
	for _, path := range own {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket %s: %v, %v", path, info.Mode(), err)
		}
	}
}

// The daemon starts first, as after a boot. The kubelet's directory does not exist yet.
func TestStartBeforeKubelet(t *testing.T) {
	dir := shortDir(t)
	d := newDaemon(t, dir, plain(2))
	d.awaitReady()
	k := newNode(t, Options{Dir: dir})
	t.Logf("kubelet.sock -> devices visible: %v", sees(t, k, widgetResource, 2, 2))
}

func TestHotplug(t *testing.T) {
	k, d := offered(t, Options{}, plain(1))
	first := devices(t, k)

	d.plug(plain(2))
	sees(t, k, widgetResource, 2, 2)
	both := devices(t, k)
	for id := range first {
		if both[id].Health != "Healthy" {
			t.Errorf("%s after the hotplug of another: %+v", id, both[id])
		}
	}

	d.plug(plain(1)) // no pod holds it, so its ID may leave the list
	allocatable(t, k, 1)
	d.plug(plain(2))
	sees(t, k, widgetResource, 2, 2)
	if again := devices(t, k); !sameIDs(again, both) {
		t.Errorf("IDs after replug: %v instead of %v", again, both)
	}

	d.plug(nil)
	allocatable(t, k, 0)
	d.plug(plain(2))
	sees(t, k, widgetResource, 2, 2)
	if n := registrations(k, widgetResource); n != 1 {
		t.Errorf("registered %d times with one kubelet", n)
	}
}

// registrations returns how often a resource was registered since the kubelet's start. Each unnecessary registration
// costs the kubelet a connection, and may cost the devices.
func registrations(k *Kubelet, resource string) (n int) {
	for line := range strings.Lines(k.Log()) {
		if strings.Contains(line, "Got registration request") && strings.Contains(line, strconv.Quote(resource)) {
			n++
		}
	}
	return n
}

// An editor that writes in place leaves an incomplete file for a moment.
func TestHotplugInPlace(t *testing.T) {
	k, d := offered(t, Options{}, plain(1))
	d.must(os.WriteFile(d.path("hardware/recording"), []byte(recordingOf(plain(3))), 0o600))
	sees(t, k, widgetResource, 3, 3)
}

// allocatable waits until the given number of widgets is healthy, regardless of the number of unhealthy ones.
func allocatable(t *testing.T, k *Kubelet, want int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d allocatable", want), func() error {
		counts, err := k.Capacity(within(t))
		if err != nil {
			return err
		}
		if got := counts[widgetResource]; got.Allocatable != want {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

func sameIDs(a, b map[string]protocol.Device) bool {
	if len(a) != len(b) {
		return false
	}
	for id := range a {
		if _, ok := b[id]; !ok {
			return false
		}
	}
	return true
}

// An unplugged device that a pod holds stays in the list, unhealthy, and is the same device when it returns.
func TestUnplugHeld(t *testing.T) {
	k, d := offered(t, Options{}, plain(1))
	admit(t, k, pod("p1", widgetResource, 1))
	held := assigned(t, k, "p1")[0].ID
	d.plug(nil)
	sees(t, k, widgetResource, 1, 0)
	if got := devices(t, k)[held].Health; got != "Unhealthy" {
		t.Errorf("%s reads %q", held, got)
	}
	if got := statusOf(t, k, "p1"); got != "Unhealthy" {
		t.Errorf("status of the pod says %q", got)
	}
	d.plug(plain(1))
	sees(t, k, widgetResource, 1, 1)
	if got := statusOf(t, k, "p1"); got != "Healthy" {
		t.Errorf("status of the pod says %q", got)
	}
	rejected(t, k, pod("p2", widgetResource, 1), "UnexpectedAdmissionError")
	remove(t, k, "p1")
	admit(t, k, pod("p3", widgetResource, 1))
}

func statusOf(t *testing.T, k *Kubelet, uid string) string {
	t.Helper()
	list, err := k.Status(within(t), uid)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 {
		t.Fatalf("status of pod %s: %v", uid, list)
	}
	return list[0].Health
}

// The daemon sends the NUMA nodes of all devices or of none. A strict policy would never allocate a device without one.
func TestNUMANodes(t *testing.T) {
	k, d := offered(t, Options{NUMANodes: 2}, aligned(4))
	for id, got := range devices(t, k) {
		if len(got.NUMA) != 1 || got.NUMA[0] < 0 || got.NUMA[0] > 1 {
			t.Errorf("%s: NUMA nodes %v", id, got.NUMA)
		}
	}
	d.plug(append(aligned(4), widget{n: 4, numa: -1}))
	sees(t, k, widgetResource, 5, 5)
	for id, got := range devices(t, k) {
		if len(got.NUMA) != 0 {
			t.Errorf("%s: NUMA nodes %v beside a device without", id, got.NUMA)
		}
	}
}
