// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// split returns a recording of widgets 0 to n-1. They are on NUMA nodes 0 and 1 in turn.
func split(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "\n%sA: numa_node=%d\\n\n", strings.TrimPrefix(recorded(i), "# written by a test\n\n"), i%2)
	}
	return b.String()
}

// Each of two NUMA nodes has three devices. A pod with four devices does not fit on one NUMA node. After two pods with two
// devices each, every NUMA node has one free device. Another pod with two devices would then get devices from both NUMA
// nodes, although two devices fit on one.
func TestTopology(t *testing.T) {
	for _, policy := range []struct {
		name       string
		four, pair bool // whether the policy admits a pod with four devices, and the last pod with two devices
	}{
		{"none", true, true}, // the devices are aligned because of metalplugd's preference
		{"best-effort", true, true},
		{"restricted", true, false},
		{"single-numa-node", false, false},
	} {
		t.Run(policy.name, func(t *testing.T) {
			s := tell(t, "the topology manager admits pods by policy "+policy.name)
			node := s.nodeOf(NodeOptions{Name: s.label(""), Recording: split(6), Topology: policy.name}, 6)
			if admitted, _ := s.admitted(node, "-four", 4); admitted != policy.four {
				s.Errorf("a pod of four was admitted: %v", admitted)
			}
			s.remove(s.label("-four"))
			s.step("a pod of four is admitted: %v", policy.four)
			for _, more := range []string{"-0", "-1"} {
				if admitted, ids := s.admitted(node, more, 2); !admitted || len(ids) != 2 || numa(ids[0]) != numa(ids[1]) {
					s.Errorf("a pod of two has %v", ids)
				}
			}
			s.step("two pods of two are aligned")
			if admitted, _ := s.admitted(node, "-2", 2); admitted != policy.pair {
				s.Errorf("a pod of two that cannot be aligned was admitted: %v", admitted)
			}
			s.step("a pod of two that cannot be aligned is admitted: %v", policy.pair)
		})
	}
}

// numa is the NUMA node of a widget in a recording of split.
func numa(id string) int {
	for i := range 6 {
		if id == widgetID(i) {
			return i % 2
		}
	}
	return -1
}

// admitted creates a pod, reports whether the kubelet admits it, and returns its widgets. The topology manager may refuse
// the pod.
func (s *story) admitted(node *Node, more string, count int) (admitted bool, ids []string) {
	s.Helper()
	p := pod(node, s.label(more), count)
	s.create(p)
	s.await("pod "+p.Name+" is neither admitted nor refused", func(context.Context) error {
		now := s.get(p.Name)
		switch {
		case now.Status.Phase == corev1.PodRunning:
			admitted = true
			return nil
		case now.Status.Phase == corev1.PodFailed && now.Status.Reason == "TopologyAffinityError":
			return nil
		case now.Status.Phase == corev1.PodFailed:
			return fatal{fmt.Errorf("it failed: %s %s", now.Status.Reason, now.Status.Message)}
		}
		return fmt.Errorf("it is %s", now.Status.Phase)
	})
	if admitted {
		ids = s.widgetsOf(p.Name, "main")
	}
	return admitted, ids
}
