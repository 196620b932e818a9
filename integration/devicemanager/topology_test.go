// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"testing"
)

// singleNode returns the options of a machine with two NUMA nodes, where all devices of a pod must be on one node.
func singleNode() Options { return Options{TopologyPolicy: "single-numa-node", NUMANodes: 2} }

func TestTopologyAligns(t *testing.T) {
	k, _ := offered(t, singleNode(), aligned(8))
	for i := range 4 { // four pairs fit, in any order
		uid := fmt.Sprintf("p%d", i)
		admit(t, k, pod(uid, widgetResource, 2))
		if got := assigned(t, k, uid); got[0].NUMA[0] != got[1].NUMA[0] {
			t.Errorf("%s: %+v", uid, got)
		}
		run(t, k, uid, "main")
	}
	rejected(t, k, pod("p5", widgetResource, 1), "TopologyAffinityError") // no device is left
}

func TestTopologyRejects(t *testing.T) {
	k, _ := offered(t, singleNode(), aligned(4))
	rejected(t, k, pod("p1", widgetResource, 3), "TopologyAffinityError")
	admit(t, k, pod("p2", widgetResource, 2))
	admit(t, k, pod("p3", widgetResource, 2))
}

// Only healthy devices count for the choice of a NUMA node.
func TestTopologyUnhealthy(t *testing.T) {
	k, d := offered(t, singleNode(), aligned(4))
	admit(t, k, pod("p0", widgetResource, 2)) // holds one node
	held := assigned(t, k, "p0")[0].NUMA[0]
	left := []widget{}
	for _, w := range aligned(4) {
		if int64(w.numa) == held || w.n > 1 { // the other node loses a widget
			left = append(left, w)
		}
	}
	d.plug(left)
	allocatable(t, k, 3)
	rejected(t, k, pod("p1", widgetResource, 2), "TopologyAffinityError")
	admit(t, k, pod("p2", widgetResource, 1))
}

// If devices have no NUMA nodes, a strict policy admits all pods.
func TestTopologyWithoutNodes(t *testing.T) {
	k, _ := offered(t, singleNode(), plain(3))
	admit(t, k, pod("p1", widgetResource, 3))
}
