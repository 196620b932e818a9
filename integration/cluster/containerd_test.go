// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The containers are real. containerd 2 and runc run them, in cgroups that the kubelet creates.
func TestContainerd(t *testing.T) {
	for _, inject := range []string{"nodes", "cdi"} {
		t.Run(inject, func(t *testing.T) {
			s := tell(t, "containers of containerd and runc open their disk, which comes as "+inject)
			disk, _ := s.disk()
			node := s.nodeOf(NodeOptions{Name: s.label(""), Containerd: true, Disk: disk, Resources: fmt.Sprintf(`
[[resource]]
name = %q
class = "node"
match = { DEVNAME = %q }
inject = %q
[resource.reset]
method = "none"
scrub = "zero"
`, widget, disk, inject)}, 1)
			without := filling(node, s.label("-without"), 0, "/fill", disk)
			s.create(without)
			s.phase(without.Name, corev1.PodFailed)
			if got := s.printed(without.Name); !strings.Contains(got, "no such file or directory") {
				s.Errorf("a pod without a device printed %q", got)
			}
			s.step("a pod without a device cannot open the disk")
			first, second := filling(node, s.label("-0"), 1, "/fill", "--hold", disk), filling(node, s.label("-1"), 1, "/fill", disk)
			s.create(first)
			s.blank(first.Name)
			s.step("a pod has the disk open and has written on all of it")
			before := s.phase(first.Name, corev1.PodRunning).Status.ContainerStatuses[0].ContainerID
			s.create(second)
			s.unschedulable(second.Name)
			node.KillKubelet()
			s.must(node.StartKubelet())
			s.has(node, map[string]string{"node-" + filepath.Base(disk): first.Name})
			if now := s.phase(first.Name, corev1.PodRunning).Status.ContainerStatuses[0].ContainerID; now != before {
				s.Errorf("the container is %s, and was %s", now, before)
			}
			s.step("the kubelet was restarted, and the container runs")
			s.remove(first.Name)
			s.phase(second.Name, corev1.PodSucceeded)
			s.blank(second.Name)
			s.step("after it, another pod has found the disk erased")
		})
	}
}

// filling returns a pod with FillImage.
func filling(node *Node, name string, count int, command ...string) *corev1.Pod {
	p := pod(node, name, count)
	p.Spec.HostNetwork = true // there is no CNI plugin
	p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = FillImage, corev1.PullNever
	p.Spec.Containers[0].Command = command
	return p
}

// printed waits for the first output of a pod and returns it.
func (s *story) printed(pod string) (text string) {
	s.Helper()
	s.await("no output of "+pod, func(ctx context.Context) error {
		out, err := s.cluster.Client.CoreV1().Pods(space).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err == nil && len(out) == 0 {
			err = fmt.Errorf("it is %s", s.get(pod).Status.Phase)
		}
		text = strings.TrimSpace(string(out))
		return err
	})
	return text
}

// blank waits until a pod reports that its disk was blank.
func (s *story) blank(pod string) {
	s.Helper()
	if found := s.printed(pod); found != "blank" {
		s.Errorf("pod %s found %s", pod, found)
	}
}
