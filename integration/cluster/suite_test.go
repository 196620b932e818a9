// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The stories in this file have the titles of Kubernetes' own tests of device plugins, as far as no other story covers them.
// README.md lists all of these tests.

func TestContainerRestart(t *testing.T) {
	s := tell(t, "a container that fails is started again with the same device")
	node := s.node(2)
	p := pod(node, s.label(""), 1)
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	p.Spec.Containers[0].Command = shell("test -e /run/again && exec sleep infinity; touch /run/again; exit 1")
	s.create(p)
	s.await("the container of "+p.Name+" was not restarted", func(context.Context) error { // the first container may run for a moment
		if count := s.phase(p.Name, corev1.PodRunning).Status.ContainerStatuses[0].RestartCount; count != 1 {
			return fmt.Errorf("it was restarted %d times", count)
		}
		return nil
	})
	before := s.logOf(p.Name, &corev1.PodLogOptions{Previous: true}).Env[environment]
	if now := s.widgetsOf(p.Name, "main"); !slices.Equal(now, []string{before}) {
		s.Errorf("the container has %v, and had %s before", now, before)
	}
	s.step("it failed once, and runs with %s again", before)
}

// shell is the command of a container that runs a script.
func shell(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestSucceeded(t *testing.T) {
	s := tell(t, "a pod that has succeeded stays so when the kubelet starts without metalplugd")
	node := s.node(1)
	p := pod(node, s.label("-0"), 1)
	p.Spec.Containers[0].Command = []string{"exit", "0"}
	s.create(p)
	s.phase(p.Name, corev1.PodSucceeded)
	s.step("the pod has succeeded")
	s.must(node.StopDaemon())
	node.KillKubelet()
	s.must(node.StartKubelet())
	other := pod(node, s.label("-1"), 0)
	s.create(other)
	s.phase(other.Name, corev1.PodRunning)
	s.phase(p.Name, corev1.PodSucceeded)
	s.step("metalplugd is stopped, and the kubelet was restarted and runs a new pod without a device")
	s.must(node.StartDaemon(s.Context()))
	s.registered(node, 1)
	next := pod(node, s.label("-2"), 1)
	s.create(next)
	s.phase(next.Name, corev1.PodRunning)
	s.phase(p.Name, corev1.PodSucceeded)
	s.step("metalplugd was started, and a pod runs with the device")
}

// While the kubelet still ends the deleted pod, it refuses the next one. The ReplicaSet then creates another.
func TestOrphan(t *testing.T) {
	s := tell(t, "a pod is deleted while the kubelet is down, and its device goes to the next pod")
	node := s.node(1)
	p := pod(node, s.label("-0"), 1)
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	s.has(node, map[string]string{widgetID(0): p.Name})
	s.step("the pod runs")
	node.KillKubelet()
	at := int64(0) // delete the pod without waiting for the kubelet
	s.must(s.cluster.Client.CoreV1().Pods(space).Delete(s.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &at}))
	s.must(node.StartKubelet())
	s.has(node, nil)
	s.registered(node, 1)
	s.step("it was deleted, and neither the kubelet nor metalplugd count its device any more")
	next := s.replicaOn(s.replicas(pod(node, s.label("-1"), 1), node), node)
	s.has(node, map[string]string{widgetID(0): next})
	s.step("the next pod runs with the device")
}

func TestRebootWithout(t *testing.T) {
	s := tell(t, "the node reboots without a device, and its pod is refused")
	node := s.node(1)
	p := pod(node, s.label("-0"), 1)
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	node.options.Recording = recorded()
	s.must(node.Reboot(s.Context()))
	if message := s.phase(p.Name, corev1.PodFailed).Status.Message; !strings.Contains(message, string(widget)) {
		s.Errorf("the pod failed with %q", message)
	}
	s.allocatable(node, 0)
	s.step("the node has rebooted, and has refused its pod")
	s.must(node.Plug(widgets(1)))
	next := pod(node, s.label("-1"), 1)
	s.create(next)
	s.phase(next.Name, corev1.PodRunning)
	s.has(node, map[string]string{widgetID(0): next.Name})
	s.step("the device was plugged in, and another pod runs with it")
}

func TestFailed(t *testing.T) {
	s := tell(t, "a pod fails as its device is unplugged, and its status says why (KEP-4680)")
	node := s.node(1)
	p := pod(node, s.label(""), 1)
	p.Spec.Containers[0].Command = shell("while test -e /dev/widget0; do sleep 0.1; done; exit 1")
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	s.health(p.Name, widgetID(0), corev1.ResourceHealthStatusHealthy)
	s.step("the pod runs, and its device is Healthy")
	s.must(node.Plug(recorded()))
	s.phase(p.Name, corev1.PodFailed)
	s.health(p.Name, widgetID(0), corev1.ResourceHealthStatusUnhealthy)
	s.step("the pod has failed, and its device is Unhealthy")
}
