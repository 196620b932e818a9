// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
)

// TestMovedEndsWithNextPod gives a device, which has moved while a pod had it, to another pod before the inventory knows that the
// first pod has ended. The other pod got the new node, so its container must not be refused.
func TestMovedEndsWithNextPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "node-A-widget"
		m := udevtest.New(t, widget("widget0", "A"))
		r := start(t, m, t.TempDir())
		checkMoved := func(want bool) {
			t.Helper()
			if s, _ := r.Snapshot(); s.Find(id).Moved != want {
				t.Errorf("Moved = %v, want %v", !want, want)
			}
		}
		r.Allocated(map[string][]string{id: {id}}, "7")
		clock.Pass(time.Second)
		r.Starting(map[string][]string{id: {id}})
		clock.Pass(time.Second)
		checkMoved(false)
		m.Unplug("/sys/devices/virtual/widget/widget0")
		clock.Pass(5 * time.Second)
		m.Plug(widget("widget1", "A"))
		clock.Pass(5 * time.Second)
		checkMoved(true)
		r.Allocated(map[string][]string{id: {id}}, "7")
		clock.Pass(time.Second)
		checkMoved(false)
	})
}
