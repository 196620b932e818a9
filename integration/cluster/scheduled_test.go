// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCapacity(t *testing.T) {
	s := tell(t, "pods are scheduled to where devices are, and one waits until a device is free")
	a := s.nodeOf(NodeOptions{Name: s.label("-a"), Recording: widgets(1)}, 1)
	b := s.nodeOf(NodeOptions{Name: s.label("-b"), Recording: widgets(2)}, 2)
	var names []string
	for i := range 4 {
		p := pod(a, s.label(fmt.Sprintf("-%d", i)), 1)
		p.Spec.NodeSelector = nil // only this node has widgets
		if i < 3 {
			names = append(names, p.Name)
		}
		s.create(p)
		if i < 3 {
			s.phase(p.Name, corev1.PodRunning)
			s.step("pod %d of %d runs", i+1, 4)
		}
	}
	given := make(map[string][]string)
	onA := ""
	for _, name := range names {
		node := s.get(name).Spec.NodeName
		given[node] = append(given[node], s.widgetsOf(name, "main")...)
		if node == a.Name {
			onA = name
		}
	}
	for node, want := range map[string][]string{a.Name: {widgetID(0)}, b.Name: {widgetID(0), widgetID(1)}} {
		if got := slices.Sorted(slices.Values(given[node])); !slices.Equal(got, want) {
			s.Errorf("pods on %s have %v, want %v", node, got, want)
		}
	}
	last := s.label("-3")
	s.unschedulable(last)
	s.step("the last pod is Unschedulable")
	s.remove(onA)
	s.step("the pod on %s has gone", a.Name)
	s.phase(last, corev1.PodRunning)
	if node, got := s.get(last).Spec.NodeName, s.widgetsOf(last, "main"); node != a.Name || !slices.Equal(got, []string{widgetID(0)}) {
		s.Errorf("the last pod is on %s with %v", node, got)
	}
	s.step("the last pod runs with its device")
}

func TestInARow(t *testing.T) {
	const pods = 8
	s := tell(t, fmt.Sprintf("%d pods in a row have the same device", pods))
	node := s.node(1)
	waiting := make(map[string]bool)
	for i := range pods {
		p := pod(node, s.label(fmt.Sprintf("-%d", i)), 1)
		s.create(p)
		waiting[p.Name] = true
	}
	for len(waiting) > 0 {
		running := s.running(waiting)
		if got := s.widgetsOf(running, "main"); !slices.Equal(got, []string{widgetID(0)}) {
			s.Errorf("%s has %v", running, got)
		}
		s.remove(running)
		delete(waiting, running)
		s.step("%s ran and has gone", running)
	}
}

func TestStatic(t *testing.T) {
	s := tell(t, "a static pod and pods of the API share the devices of a node")
	node := s.node(2)
	fixed := pod(node, "fixed", 1)
	fixed.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	manifest, err := json.Marshal(fixed)
	s.must(err)
	s.must(node.Static("fixed", manifest))
	mirror := "fixed-" + node.Name
	s.await("no mirror pod", func(context.Context) error { return s.exists(mirror) })
	s.phase(mirror, corev1.PodRunning)
	s.step("the static pod runs")
	first, second := pod(node, s.label("-0"), 1), pod(node, s.label("-1"), 1)
	s.create(first)
	s.phase(first.Name, corev1.PodRunning)
	given := append(s.widgetsOf(mirror, "main"), s.widgetsOf(first.Name, "main")...)
	if slices.Sort(given); !slices.Equal(given, []string{widgetID(0), widgetID(1)}) {
		s.Errorf("the pods have %v", given)
	}
	s.step("a pod of the API runs with the other device")
	s.create(second)
	s.unschedulable(second.Name)
	s.step("a second one is Unschedulable")
	s.must(node.Static("fixed", nil))
	s.phase(second.Name, corev1.PodRunning)
	s.step("the static pod was removed, and the second one runs")
}

func TestInit(t *testing.T) {
	s := tell(t, "an init container hands its device on, and a restartable one keeps its own")
	node := s.node(2)
	p := pod(node, s.label("-0"), 1)
	always := corev1.ContainerRestartPolicyAlways
	sidecar := asking("sidecar", 1)
	sidecar.RestartPolicy = &always
	p.Spec.InitContainers = []corev1.Container{asking("first", 1, "exit", "0"), sidecar}
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	s.step("the pod runs")
	first, side, main := s.widgetsOf(p.Name, "first"), s.widgetsOf(p.Name, "sidecar"), s.widgetsOf(p.Name, "main")
	if len(first) != 1 || len(side) != 1 || len(main) != 1 || side[0] == main[0] {
		s.Errorf("the init container had %v, the sidecar has %v and the main container %v", first, side, main)
	}
	next := pod(node, s.label("-1"), 1)
	s.create(next)
	s.unschedulable(next.Name)
	s.step("another pod is Unschedulable")
	s.remove(p.Name)
	s.phase(next.Name, corev1.PodRunning)
	s.step("after the first pod it runs")
}

func TestCDI(t *testing.T) {
	s := tell(t, "a container gets its device by a CDI name")
	node := s.nodeOf(NodeOptions{Name: s.label(""), Recording: widgets(2), Resources: resources + "inject = \"cdi\"\n"}, 2)
	p := pod(node, s.label("-0"), 2)
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	s.step("the pod runs")
	c := s.log(p.Name, "main")
	if len(c.CDI) != 2 || len(c.Devices) > 0 || c.Spec == nil || len(c.Spec.Linux.Devices) != 2 {
		s.Fatalf("the container has %+v", c)
	}
	for _, d := range c.Spec.Linux.Devices {
		if want := fmt.Sprintf("/dev/widget%d", d.Minor); d.Path != want || d.Type != "c" || d.Major != 240 {
			s.Errorf("its device is %+v", d)
		}
	}
}
