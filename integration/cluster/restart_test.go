// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// holders starts two pods with one widget each. The node has three widgets.
func (s *story) holders(node *Node) []*corev1.Pod {
	s.Helper()
	var pods []*corev1.Pod
	for _, more := range []string{"-0", "-1"} {
		p := pod(node, s.label(more), 1)
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		s.create(p)
		pods = append(pods, s.phase(p.Name, corev1.PodRunning))
	}
	s.step("two pods run")
	return pods
}

// newcomer checks that another pod can run. The other pods must still run in the same containers, and no two pods may have
// the same device.
func (s *story) newcomer(node *Node, before []*corev1.Pod) {
	s.Helper()
	next := pod(node, s.label("-2"), 1)
	s.create(next)
	s.phase(next.Name, corev1.PodRunning)
	s.step("another pod runs")
	given := append(s.widgetsOf(next.Name, "main"), s.same(before)...)
	if slices.Sort(given); !slices.Equal(given, []string{widgetID(0), widgetID(1), widgetID(2)}) {
		s.Errorf("the three pods have %v", given)
	}
}

// same checks that pods run in the same containers as before, and returns their widgets.
func (s *story) same(before []*corev1.Pod) (given []string) {
	s.Helper()
	for _, p := range before {
		now := s.phase(p.Name, corev1.PodRunning)
		if is, was := now.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].ContainerID; is != was {
			s.Errorf("pod %s has container %s instead of %s", p.Name, is, was)
		}
		given = append(given, s.widgetsOf(p.Name, "main")...)
	}
	return given
}

func TestKubeletRestart(t *testing.T) {
	s := tell(t, "the kubelet is killed and started with pods running")
	node := s.node(3)
	pods := s.holders(node)
	node.KillKubelet()
	s.must(node.StartKubelet())
	s.registered(node, 3)
	s.newcomer(node, pods)
	s.allocatable(node, 3)
}

func TestDaemonRestart(t *testing.T) {
	s := tell(t, "metalplugd is stopped and started with pods running")
	node := s.node(3)
	pods := s.holders(node)
	s.must(node.StopDaemon())
	s.allocatable(node, 0)
	s.step("metalplugd was stopped, and the node has no device")
	next := pod(node, s.label("-early"), 1)
	s.create(next)
	s.unschedulable(next.Name)
	s.remove(next.Name)
	s.must(node.StartDaemon(s.Context()))
	s.allocatable(node, 3)
	s.step("it was started, and the node has its devices")
	s.newcomer(node, pods)
}

func TestReboot(t *testing.T) {
	s := tell(t, "the node reboots, and its pods run again with their devices")
	node := s.node(3)
	pods := s.holders(node)
	var before []string
	for _, p := range pods {
		before = append(before, s.widgetsOf(p.Name, "main")...)
	}
	s.must(node.Reboot(s.Context()))
	for i, p := range pods {
		s.restarted(p)
		if got := s.widgetsOf(p.Name, "main"); !slices.Equal(got, before[i:i+1]) {
			s.Errorf("pod %s has %v, and had %s before", p.Name, got, before[i])
		}
	}
	s.step("both pods run again")
}
