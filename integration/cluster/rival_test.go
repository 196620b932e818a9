// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gpu is a built-in resource. If another plugin serves it, metalplugd holds it back.
const gpu = corev1.ResourceName("nvidia.com/gpu")

// gpus is the number of GPUs in the recording gpu-server.
const gpus = 8

func TestRival(t *testing.T) {
	s := tell(t, "a DaemonSet installs another plugin for a built-in resource, and removes it")
	recording, err := os.ReadFile(filepath.Join("..", "..", "udev", "recording", "bundled", "gpu-server.umockdev"))
	s.must(err)
	node := s.nodeOf(NodeOptions{Name: s.label(""), Recording: string(recording)}, 0)
	s.offers(node, gpu, gpus)
	s.step("metalplugd offers %d GPUs", gpus)
	remove := s.daemonSet(node, "/run/bin/cluster/rival", string(gpu), "3")
	s.offers(node, gpu, 3)
	s.step("the DaemonSet runs, and the node has its 3 GPUs")
	s.await("metalplugd does not hold its GPUs back", func(ctx context.Context) error {
		if out, err := node.Ctl(ctx, "status"); !strings.Contains(out, "held back") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	s.step("metalplugd holds its GPUs back")
	if _, ours := s.variables(node, "-0"); ours {
		s.Errorf("a pod has a GPU of metalplugd")
	}
	s.step("a pod runs with a GPU of the DaemonSet")
	remove()
	s.offers(node, gpu, gpus)
	s.step("the DaemonSet was deleted, and metalplugd offers %d GPUs", gpus)
	if theirs, ours := s.variables(node, "-1"); theirs || !ours {
		s.Errorf("a pod has no GPU of metalplugd")
	}
	s.step("a pod runs with a GPU of metalplugd")
}

// variables runs a pod with one GPU until it ends. It reports whether the pod had the variables of the other plugin and
// those of metalplugd.
func (s *story) variables(node *Node, more string) (theirs, ours bool) {
	s.Helper()
	p := pod(node, s.label(more), 0)
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	env := s.log(p.Name, "main").Env
	s.remove(p.Name)
	_, theirs = env["RIVAL_DEVICES"]
	_, ours = env["METALPLUG_NVIDIA_COM_GPU"]
	return theirs, ours
}

// daemonSet installs a program as a DaemonSet on one node. It returns a function that removes the DaemonSet.
func (s *story) daemonSet(node *Node, command ...string) (remove func()) {
	s.Helper()
	labels := map[string]string{"story": s.label("")}
	p := pod(node, s.label(""), 0)
	p.Spec.RestartPolicy, p.Spec.Containers[0].Command = corev1.RestartPolicyAlways, command
	sets := s.cluster.Client.AppsV1().DaemonSets(space)
	_, err := sets.Create(s.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: p.Spec},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	remove = func() {
		ctx := context.WithoutCancel(s.Context())
		if err := sets.Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil && !isGone(err) {
			s.Error(err)
		}
		s.vanish(labels)
	}
	s.Cleanup(remove)
	return remove
}

// vanish waits until no pod has these labels.
func (s *story) vanish(labels map[string]string) {
	s.Helper()
	ctx := context.WithoutCancel(s.Context()) // a cleanup may call this function
	if err := poll(ctx, "pods stay", func(ctx context.Context) error {
		pods, err := s.cluster.Client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{LabelSelector: "story=" + labels["story"]})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	}); err != nil {
		s.Error(err)
	}
}
