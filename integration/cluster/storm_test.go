// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	stormTime = flag.Duration("storm", 20*time.Second, "how long nodes and pods change in TestStorm")
	stormSeed = flag.Uint64("seed", 1, "seed of TestStorm and TestClaimChangeover")
)

const (
	stormNodes   = 8
	stormWidgets = 4 // number of widgets on each node
	stormPods    = 24
)

// storm changes nodes and pods at random.
type storm struct {
	*story
	random *rand.Rand
	nodes  []*Node
	pods   []string // pods that were created and not deleted
	next   int      // number of the next pod
	counts map[string]int
}

// At the end, the API server, the kubelets, metalplugd and the hardware have the same state. No pod may fail unless its node
// lacked the device.
func TestStorm(t *testing.T) {
	s := tell(t, fmt.Sprintf("%d nodes for %v, with hotplug, restarts of kubelets and metalplugd, and pods that come and go", stormNodes, *stormTime))
	w := &storm{story: s, random: rand.New(rand.NewPCG(*stormSeed, 0)), counts: make(map[string]int)}
	for i := range stormNodes {
		w.nodes = append(w.nodes, s.nodeOf(NodeOptions{Name: s.label(fmt.Sprintf("-n%d", i)), Recording: widgets(stormWidgets)}, stormWidgets))
	}
	ctx, cancel := context.WithTimeout(s.Context(), *stormTime)
	defer cancel()
	for ctx.Err() == nil {
		w.change()
	}
	s.step("seed %d: %v", *stormSeed, w.counts)
	for _, n := range w.nodes {
		s.must(n.Plug(widgets(stormWidgets)))
	}
	for _, n := range w.nodes {
		s.allocatable(n, stormWidgets)
	}
	s.step("all devices are plugged in and allocatable")
	failed := w.settled()
	s.step("%d of %d pods run, %d were refused, and the others wait", len(w.pods)-failed-w.waiting(), len(w.pods), failed)
	for _, n := range w.nodes {
		w.agree(n)
	}
	s.step("API server, kubelets, containers and metalplugd agree on %d nodes", stormNodes)
}

// change makes one random change, and waits for the answer of the API server, of metalplugd or of the kubelet.
func (w *storm) change() {
	w.Helper()
	node := w.nodes[w.random.IntN(len(w.nodes))]
	switch n := w.random.IntN(20); {
	case n < 9 && len(w.pods) < stormPods:
		w.counts["pods created"]++
		p := pod(node, w.label(fmt.Sprintf("-%d", w.next)), 1+w.random.IntN(2))
		p.Spec.NodeSelector = nil // only the nodes of this story have widgets
		w.next++
		w.create(p)
		w.pods = append(w.pods, p.Name)
	case n < 14 && len(w.pods) > 0:
		w.counts["pods deleted"]++
		i := w.random.IntN(len(w.pods))
		w.lost(w.get(w.pods[i]))
		w.remove(w.pods[i])
		w.pods = slices.Delete(w.pods, i, i+1)
	case n < 17:
		w.counts["hotplug"]++
		var numbers []int
		for i := range stormWidgets {
			if w.random.IntN(3) > 0 {
				numbers = append(numbers, i)
			}
		}
		w.must(node.Plug(recorded(numbers...)))
		w.allocatable(node, len(numbers))
	case n < 19:
		w.counts["kubelet killed"]++
		node.KillKubelet()
		w.must(node.StartKubelet())
	default:
		w.counts["metalplugd restarted"]++
		w.must(node.UpgradeDaemon(w.Context(), "metalplugd"))
	}
}

// lost fails the story if a pod has failed, unless its node lacked the device.
func (w *storm) lost(p *corev1.Pod) {
	w.Helper()
	if p.Status.Phase == corev1.PodFailed && !strings.Contains(p.Status.Message, string(widget)) {
		w.Errorf("pod %s on %s failed: %s %s", p.Name, p.Spec.NodeName, p.Status.Reason, p.Status.Message)
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.RestartCount > 0 || c.State.Terminated != nil && c.ContainerID != "" { // a refused pod may have a container status without a container
			w.Errorf("the container of %s on %s has ended: %+v", p.Name, p.Spec.NodeName, c)
		}
	}
}

// settled waits until each pod runs, was refused, or fits on no node. It returns the number of refused pods.
func (w *storm) settled() (failed int) {
	w.Helper()
	for _, name := range w.pods {
		w.await("pod "+name+" is under way", func(context.Context) error {
			p := w.get(name)
			switch {
			case p.Status.Phase == corev1.PodFailed:
				w.lost(p)
				failed++
				return nil
			case p.Status.Phase == corev1.PodRunning, waits(p):
				return nil
			}
			return fmt.Errorf("it is %s on %q; %v", p.Status.Phase, p.Spec.NodeName, p.Status.Conditions)
		})
	}
	return failed
}

// waiting returns the number of pods without a node.
func (w *storm) waiting() (n int) {
	for _, name := range w.pods {
		if waits(w.get(name)) {
			n++
		}
	}
	return n
}

// waits reports whether a pod has no node.
func waits(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
	})
}

// agree checks that the containers of a node, its kubelet and metalplugd assign the same devices to the same pods, and that
// each device has only one pod.
func (w *storm) agree(n *Node) {
	w.Helper()
	containers := make(map[string]string) // the pod of each device
	pods, err := w.cluster.Client.CoreV1().Pods(space).List(w.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name})
	w.must(err)
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, id := range w.widgetsOf(p.Name, "main") {
			if other, twice := containers[id]; twice {
				w.Errorf("%s of %s is in %s and %s", id, n.Name, other, p.Name)
			}
			containers[id] = p.Name
		}
	}
	w.has(n, containers)
}
