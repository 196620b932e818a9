// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"strings"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/api"
)

// TestCordonKeepsPod checks that a container can start again with a cordoned device that its pod holds, unless the
// device is Unhealthy for another reason. No other container may get the device.
func TestCordonKeepsPod(t *testing.T) {
	b := newBench(t)
	k := b.startKubelet()
	b.waitAllocatable(k, 1)
	c, err := k.Allocate(t.Context(), resource, 1)
	if err != nil {
		t.Fatal(err)
	}
	id := c.Devices[0]
	if err := b.endpoint.Inventory.Cordon(t.Context(), id, api.Cordon{Reason: "loose"}); err != nil {
		t.Fatal(err)
	}
	b.waitAllocatable(k, 0)
	if err := k.PreStart(t.Context(), resource, c); err != nil {
		t.Errorf("the pod's container starts again: %v", err)
	}
	_, err = b.client().Allocate(t.Context(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{id}}},
	})
	checkCordonError(t, "for another pod", err)
	b.machine.Unplug("/sys/devices/virtual/widget/widget0")
	limit := time.After(patience)
	for {
		snapshot, changed := b.endpoint.Inventory.Snapshot()
		if d := snapshot.Find(id); d != nil && !d.Present {
			break
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatal("it is never gone")
		}
	}
	checkCordonError(t, "gone besides", k.PreStart(t.Context(), resource, c))
}

// checkCordonError checks that an error mentions the cordon.
func checkCordonError(t *testing.T, when string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "cordoned: loose") {
		t.Errorf("%s: %v", when, err)
	}
}
