// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
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
