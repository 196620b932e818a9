// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// listLimit is the largest message that the device manager receives, in bytes. It is gRPC's default, which the device
// manager does not raise (pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go, dial).
const listLimit = 4 << 20

// shareSize is the maximum size of a share of these widgets in a list, in bytes. The device, its ID (such as
// "node-widget-W100-widget::100") and its health each have a tag and a length of one byte.
const shareSize = 2 + 2 + 28 + 2 + len(api.Unhealthy)

// The node has more devices than fit into one list. The daemon offers as many as fit, after each restart. The devices of
// pods are always among them, present or gone.
func TestListTooLong(t *testing.T) {
	hardware := plain(150)
	k := newNode(t, Options{})
	d := newDaemon(t, k.options.Dir, hardware)
	d.awaitReady()
	d.reload(shared(1000))
	d.awaitReady()
	full(t, k, func(c protocol.Counts) bool { return c.Allocatable == c.Capacity })
	admit(t, k, pod("p1", widgetResource, 1))
	run(t, k, "p1", "main")
	d.plug(othersThan(assigned(t, k, "p1"), hardware))
	oneGone := func(c protocol.Counts) bool { return 0 < c.Allocatable && c.Allocatable < c.Capacity }
	full(t, k, oneGone)
	restart(t, k)
	full(t, k, oneGone)
	checkHeld(t, k, "p1")
	d.kill()
	full(t, k, func(c protocol.Counts) bool { return c.Allocatable == 0 })
	d.start()
	full(t, k, oneGone)
	checkHeld(t, k, "p1")
	if strings.Contains(k.Log(), "larger than max") {
		t.Errorf("a list was too long:\n%s", k.Log())
	}
}

// full waits until the device manager has a list with no room for another of these widgets, and until wanted returns true
// for the counts.
func full(t *testing.T, k *Kubelet, wanted func(protocol.Counts) bool) {
	t.Helper()
	eventually(t, "a full list", func() error {
		counts, err := k.Capacity(within(t))
		if c := counts[widgetResource]; err == nil && (c.Capacity < int64(listLimit/shareSize-1) || !wanted(c)) {
			return fmt.Errorf("%+v", c)
		}
		return err
	})
}

// If a list is too long, the device manager ends the stream. The plugin then registers repeatedly, until its list is short
// enough.
func TestHarnessListTooLong(t *testing.T) {
	k, d, p := offeredByProxy(t, Options{}, plain(1))
	p.editLists(func(list *api.ListAndWatchResponse) {
		list.Devices = append(list.Devices, &api.Device{ID: strings.Repeat("x", listLimit), Health: api.Healthy})
	})
	d.plug(plain(2))
	sees(t, k, widgetResource, 1, 0)
	eventually(t, "another attempt", func() error {
		if registrations(k, widgetResource) < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	p.editLists(func(*api.ListAndWatchResponse) {})
	sees(t, k, widgetResource, 2, 2)
}
