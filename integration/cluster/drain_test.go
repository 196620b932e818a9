// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The scheduler sees the cordon of a node. It does not see the cordon of a device, but only that the node has one device
// less.
func TestDrain(t *testing.T) {
	s := tell(t, "a node is drained, and the cordon of a device outlives that of the node")
	a := s.nodeOf(NodeOptions{Name: s.label("-a"), Recording: widgets(1)}, 1)
	b := s.nodeOf(NodeOptions{Name: s.label("-b"), Recording: widgets(1)}, 1)
	set := s.replicas(pod(a, s.label(""), 1), a)
	first := s.replicaOn(set, a)
	s.step("a pod of a ReplicaSet runs on %s", a.Name)
	if out, err := a.Ctl(s.Context(), "cordon", widgetID(0), "--reason", "a story"); err != nil {
		s.Fatalf("cordon: %v: %s", err, out)
	}
	s.cordon(a, true)
	s.must(s.cluster.Client.CoreV1().Pods(space).EvictV1(s.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: first, Namespace: space},
	}))
	s.replicaOn(set, b)
	s.has(a, nil)
	s.step("%s and its device were cordoned, the pod was evicted, and another runs on %s", a.Name, b.Name)
	s.cordon(a, false)
	next := pod(a, s.label("-next"), 1)
	s.create(next)
	s.allocatable(a, 0)
	s.unschedulable(next.Name)
	s.step("%s was uncordoned, and a pod for its device is Unschedulable", a.Name)
	if out, err := a.Ctl(s.Context(), "uncordon", widgetID(0)); err != nil {
		s.Fatalf("uncordon: %v: %s", err, out)
	}
	s.phase(next.Name, corev1.PodRunning)
	if got := s.widgetsOf(next.Name, "main"); !slices.Equal(got, []string{widgetID(0)}) {
		s.Errorf("it has %v", got)
	}
	s.step("the device was uncordoned, and the pod runs with it")
}

// cordon marks a node as unschedulable or schedulable, as kubectl does.
func (s *story) cordon(n *Node, unschedulable bool) {
	s.Helper()
	_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.Context(), n.Name, types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, unschedulable), metav1.PatchOptions{})
	s.must(err)
}

// replicaOn waits until the only pod of a ReplicaSet runs on this node, and returns the name of the pod.
func (s *story) replicaOn(set string, n *Node) (name string) {
	s.Helper()
	s.await("no pod of "+set+" runs on "+n.Name, func(ctx context.Context) error {
		pods, err := s.cluster.Client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{LabelSelector: "story=" + set})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName == n.Name && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				name = p.Name
				return nil
			}
		}
		return errors.New("others do, or none")
	})
	return name
}
