// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUnplug(t *testing.T) {
	s := tell(t, "a device is unplugged under a running pod, and its status says so (KEP-4680)")
	node := s.node(2)
	p := pod(node, s.label("-0"), 1)
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	id := s.widgetsOf(p.Name, "main")[0]
	s.health(p.Name, id, corev1.ResourceHealthStatusHealthy)
	s.step("the pod runs with %s, which is Healthy", id)
	other := 0
	if id == widgetID(0) {
		other = 1
	}
	s.must(node.Plug(recorded(other)))
	s.health(p.Name, id, corev1.ResourceHealthStatusUnhealthy)
	s.step("it was unplugged, and is Unhealthy in the status of the pod")
	s.allocatable(node, 1)
	s.step("the node has one device less")
	// The scheduler subtracts the requests of all pods from the allocatable devices. So it subtracts the device of the first
	// pod twice.
	next := pod(node, s.label("-1"), 1)
	s.create(next)
	s.unschedulable(next.Name)
	s.step("the next pod is Unschedulable, though a device is free")
	s.must(node.Plug(recorded(0, 1)))
	s.health(p.Name, id, corev1.ResourceHealthStatusHealthy)
	s.step("it was plugged in again, and is Healthy in the status of the pod")
	s.phase(next.Name, corev1.PodRunning)
	if got := s.widgetsOf(next.Name, "main"); !slices.Equal(got, []string{widgetID(other)}) {
		s.Errorf("the next pod has %v", got)
	}
	s.step("the next pod runs with the other device")
	if pod := s.phase(p.Name, corev1.PodRunning); pod.Status.ContainerStatuses[0].RestartCount != 0 {
		s.Errorf("the container was restarted")
	}
}

func TestUnpluggedForever(t *testing.T) {
	s := tell(t, "a device that was unplugged under a pod is not given out after the pod")
	node := s.node(1)
	p, next := pod(node, s.label("-0"), 1), pod(node, s.label("-1"), 1)
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	s.must(node.Plug(recorded()))
	s.health(p.Name, widgetID(0), corev1.ResourceHealthStatusUnhealthy)
	s.allocatable(node, 0)
	s.remove(p.Name)
	s.step("the device and its pod are gone")
	s.create(next)
	s.unschedulable(next.Name)
	s.step("the next pod is Unschedulable")
	s.must(node.Plug(widgets(1)))
	s.phase(next.Name, corev1.PodRunning)
	s.step("the device was plugged in again, and the pod runs")
}

func TestAdmission(t *testing.T) {
	s := tell(t, "a pod that a kubelet refuses is replaced by one on another node")
	// The kubelet of the first node reports its devices every ten seconds, which is the default.
	stale := NodeOptions{Name: s.label("-a"), Recording: widgets(1), Status: 10 * time.Second}
	b := s.nodeOf(NodeOptions{Name: s.label("-b"), Recording: widgets(1)}, 1)
	a := s.nodeOf(stale, 1)
	s.must(a.Plug(recorded()))
	s.await("the device is not gone", func(ctx context.Context) error {
		if out, err := a.Ctl(ctx, "list", "--all"); err != nil || !strings.Contains(out, "gone") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	s.step("the device of %s was unplugged, which the API server does not know yet", a.Name)
	set := s.replicas(pod(a, s.label(""), 1), a)
	var running corev1.Pod
	s.await("no replica runs", func(ctx context.Context) error {
		pods, err := s.cluster.Client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{LabelSelector: "story=" + set})
		if err != nil {
			return err
		}
		for _, running = range pods.Items {
			if running.Status.Phase == corev1.PodRunning {
				return nil
			}
		}
		return fmt.Errorf("there are %d replicas", len(pods.Items))
	})
	if running.Spec.NodeName != b.Name {
		s.Errorf("a pod runs on %s", running.Spec.NodeName)
	}
	refused := s.refused(a)
	if refused == 0 {
		s.Errorf("%s refused no pod", a.Name)
	}
	s.step("%s refused %d pods, then one runs on %s", a.Name, refused, b.Name)
}

// refused returns the number of pods that a kubelet refused because no device was free. A ReplicaSet deletes such a pod.
func (s *story) refused(n *Node) (pods int) {
	s.Helper()
	events, err := s.cluster.Client.CoreV1().Events(space).List(s.Context(), metav1.ListOptions{})
	s.must(err)
	for _, e := range events.Items {
		if e.Source.Host == n.Name && strings.Contains(e.Message, "no healthy devices present; cannot allocate unhealthy devices "+string(widget)) {
			pods++
		}
	}
	return pods
}

func TestCordon(t *testing.T) {
	s := tell(t, "a cordoned device stays with its pod and is given to no other")
	node := s.node(2)
	p, next := pod(node, s.label("-0"), 1), pod(node, s.label("-1"), 1)
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	for i := range 2 {
		if out, err := node.Ctl(s.Context(), "cordon", widgetID(i), "--reason", "a story"); err != nil {
			s.Fatalf("cordon: %v: %s", err, out)
		}
	}
	s.allocatable(node, 0)
	s.step("both devices are cordoned, and the node has none")
	if pod := s.phase(p.Name, corev1.PodRunning); pod.Status.ContainerStatuses[0].RestartCount != 0 {
		s.Errorf("the container was restarted")
	}
	s.create(next)
	s.unschedulable(next.Name)
	s.step("the pod with a cordoned device runs, and the next one is Unschedulable")
	s.remove(p.Name)
	if out, err := node.Ctl(s.Context(), "uncordon", widgetID(1)); err != nil {
		s.Fatalf("uncordon: %v: %s", err, out)
	}
	s.phase(next.Name, corev1.PodRunning)
	if got := s.widgetsOf(next.Name, "main"); !slices.Equal(got, []string{widgetID(1)}) {
		s.Errorf("it has %v", got)
	}
	s.step("one device was uncordoned, and the next pod runs with it")
}

// health waits until the status of a pod shows this health for one of its widgets.
func (s *story) health(pod, id string, want corev1.ResourceHealthStatus) {
	s.Helper()
	s.await(fmt.Sprintf("%s of pod %s is not %s", id, pod, want), func(context.Context) error {
		var seen []corev1.ResourceStatus
		for _, c := range s.get(pod).Status.ContainerStatuses {
			for _, r := range c.AllocatedResourcesStatus {
				seen = append(seen, r)
				for _, d := range r.Resources {
					if r.Name == widget && string(d.ResourceID) == id && d.Health == want {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("its allocatedResourcesStatus is %v", seen)
	})
}

// replicas creates a ReplicaSet with one pod that prefers a node. It returns the label of the pods.
func (s *story) replicas(p *corev1.Pod, prefers *Node) string {
	s.Helper()
	labels := map[string]string{"story": p.Name}
	p.Spec.NodeSelector, p.Spec.RestartPolicy = nil, corev1.RestartPolicyAlways
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{prefers.Name},
			}}},
		}},
	}}
	one := int32(1)
	sets := s.cluster.Client.AppsV1().ReplicaSets(space)
	_, err := sets.Create(s.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: p.Spec},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		ctx := context.WithoutCancel(s.Context())
		if err := sets.Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
		s.vanish(labels)
	})
	return p.Name
}
