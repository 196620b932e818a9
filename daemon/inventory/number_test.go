// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
)

// generic is the recording of the generic node of the namespace that [blank] returns.
func generic(controller int, serial string, minor int) string {
	return fmt.Sprintf(`P: /devices/pci0000:00/0000:00:%02[1]x.0/nvme/nvme%[1]d/ng%[1]dn1
N: ng%[1]dn1
S: nvme-generic/by-id/nvme-eui.%[2]s
E: SUBSYSTEM=nvme-generic
E: DEVNAME=/dev/ng%[1]dn1
E: MAJOR=242
E: MINOR=%[3]d
A: dev=242:%[3]d
A: nsid=1

`, controller, serial, minor)
}

// TestNumberOfGenericNode replaces a disk while a pod has the disk's nodes. The kernel gives the number of the generic node to
// the next disk, whose block device has another number.
func TestNumberOfGenericNode(t *testing.T) {
	for _, test := range []struct {
		nodes string
		opens bool
	}{{device.NVMeGeneric, true}, {device.NVMeBoth, true}, {device.NVMeBlock, false}} {
		t.Run(test.nodes, func(t *testing.T) {
			first := strings.TrimRight(blank(1, "01", ""), "\n") + "\n\n" + generic(1, "01", 7)
			m := udevtest.New(t, first)
			r := start(t, m, "", func(o *inventory.Options) {
				o.Rules = []device.Rule{{Resource: nvmeResource, Class: &device.NVMe, Scrub: "none", Nodes: test.nodes}}
			})
			r.waitOffer(nvmeResource, "nvme-eui.01 Healthy")
			r.Allocated(map[string][]string{"nvme-eui.01": {"nvme-eui.01"}}, "")
			m.Apply(blank(2, "02", "") + generic(2, "02", 7))
			r.waitSnapshot("the next disk", func(s *inventory.Snapshot) bool {
				gone, next := s.Find("nvme-eui.01"), s.Find("nvme-eui.02")
				return gone != nil && !gone.Present && next != nil && next.Present
			})
			next, err := r.Current(t.Context(), "nvme-eui.02")
			if err != nil || next.Healthy == test.opens || strings.Contains(next.Reason, "char 242:7") != test.opens {
				t.Errorf("the pod can open the next disk, %v: %v, %q (%v)", test.opens, next.Healthy, next.Reason, err)
			}
		})
	}
}

// TestMovedEndsWithNextPod gives a device, which has moved while a pod had it, to another pod before the inventory knows that the
// first pod has ended. The other pod got the new node, so its container must not be refused.
func TestMovedEndsWithNextPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "node-A-widget"
		m := udevtest.New(t, widget("widget0", "A"))
		r := start(t, m, t.TempDir())
		checkMoved := func(want bool) {
			t.Helper()
			if s, err := r.Current(t.Context(), id); err != nil || s.Moved != want {
				t.Errorf("%+v (%v), want Moved = %v", s, err, want)
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
