// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"testing"
)

// singleNode is a machine of two NUMA nodes whose pods must not straddle them.
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
	rejected(t, k, pod("p5", widgetResource, 1), "TopologyAffinityError") // nothing is left
}

func TestTopologyRejects(t *testing.T) {
	k, _ := offered(t, singleNode(), aligned(4))
	rejected(t, k, pod("p1", widgetResource, 3), "TopologyAffinityError")
	admit(t, k, pod("p2", widgetResource, 2))
	admit(t, k, pod("p3", widgetResource, 2))
}

// An unhealthy device does not count. The healthy ones on each node decide.
func TestTopologyUnhealthy(t *testing.T) {
	k, d := offered(t, singleNode(), aligned(4))
	admit(t, k, pod("p0", widgetResource, 2)) // holds one node
	held := assigned(t, k, "p0")[0].NUMA[0]
	left := []widget{}
	for _, w := range aligned(4) {
		if int64(w.numa) == held || w.n > 1 { // the other node loses one
			left = append(left, w)
		}
	}
	d.plug(left)
	allocatable(t, k, 3)
	rejected(t, k, pod("p1", widgetResource, 2), "TopologyAffinityError")
	admit(t, k, pod("p2", widgetResource, 1))
}

// Without NUMA nodes a strict policy has nothing to align and admits.
func TestTopologyWithoutNodes(t *testing.T) {
	k, _ := offered(t, singleNode(), plain(3))
	admit(t, k, pod("p1", widgetResource, 3))
}
