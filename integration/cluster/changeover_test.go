// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// changeoverPods is the number of pods and widgets in TestClaimChangeover.
const changeoverPods = 16

// changeover restarts the parts of a node in random order, while pods start and end. Each pod has a device.
type changeover struct {
	*story
	node   *Node
	driver *process
	random *rand.Rand
	pods   []*corev1.Pod // the running pods, as they were when they began to run
	counts map[string]int
}

func TestClaimChangeover(t *testing.T) {
	s := tell(t, fmt.Sprintf("a resource changes over from the device plugin to DRA and back under %d pods, with random restarts", changeoverPods))
	const half = changeoverPods / 2
	node := s.node(changeoverPods)
	s.createClass(node.Name, "")
	c := &changeover{
		story: s, node: node, driver: s.startDriver(node),
		random: rand.New(rand.NewPCG(*stormSeed, 0)), counts: make(map[string]int),
	}
	for i := range half {
		c.add(pod(node, s.label(fmt.Sprintf("-old-%d", i)), 1))
	}
	s.step("%d pods run with devices of the device plugin", half)
	c.reconfigure(node, byClaim)
	s.published(node, half)
	s.step("the resource was changed over, and the other devices are in the slice")
	for i := range half {
		c.restart()
		c.add(claiming(node, s.label(fmt.Sprintf("-claim-%d", i))))
	}
	c.distinct()
	s.step("%d pods with claims run as well", half)
	c.reconfigure(node, resources)
	s.published(node, 0)
	s.allocatable(node, half)
	s.step("the resource was changed back, and the devices of the claims are not allocatable")
	for i := range half {
		c.restart()
		c.drop(half + c.random.IntN(half-i)) // a pod with a claim
		s.registered(node, half+i+1)
		s.allocatable(node, half+i+1)
		c.add(pod(node, s.label(fmt.Sprintf("-new-%d", i)), 1))
	}
	c.distinct()
	s.step("all pods with claims are gone, and pods run with their devices from the device plugin; seed %d: %v", *stormSeed, c.counts)
}

// add creates a pod and waits until it runs.
func (c *changeover) add(p *corev1.Pod) {
	c.Helper()
	c.create(p)
	c.pods = append(c.pods, c.phase(p.Name, corev1.PodRunning))
	c.distinct()
}

// drop deletes a pod.
func (c *changeover) drop(i int) {
	c.Helper()
	c.remove(c.pods[i].Name)
	c.pods = slices.Delete(c.pods, i, i+1)
}

// restart kills one part of the node and starts it again.
func (c *changeover) restart() {
	c.Helper()
	switch c.random.IntN(3) {
	case 0:
		c.counts["kubelet"]++
		c.node.KillKubelet()
		c.must(c.node.StartKubelet())
	case 1:
		c.counts["metalplugd"]++
		c.node.daemon.kill()
		c.must(c.node.StartDaemon(c.Context()))
	default: // the kubelet too, because it would wait up to 90 s, as in TestClaimRestarts
		c.counts["metalplug-dra and kubelet"]++
		c.node.KillKubelet()
		c.driver.kill()
		c.driver = c.startDriver(c.node)
		c.must(c.node.StartKubelet())
	}
}

// distinct checks that all pods still run in the same containers, and that the runtime gave no device to two pods.
func (c *changeover) distinct() {
	c.Helper()
	by := make(map[string]string) // the pod of each device node
	for _, p := range c.pods {
		c.restartedNever(p)
		got := c.log(p.Name, "main")
		var nodes []string
		for _, d := range got.Devices {
			nodes = append(nodes, d.Container)
		}
		if got.Spec != nil {
			for _, d := range got.Spec.Linux.Devices {
				nodes = append(nodes, d.Path)
			}
		}
		if len(nodes) != 1 || by[nodes[0]] != "" {
			c.Fatalf("pod %s has %v, and pods have %v", p.Name, nodes, by)
		}
		by[nodes[0]] = p.Name
	}
}

// reconfigure writes other resources and reloads metalplugd.
func (s *story) reconfigure(node *Node, resources string) {
	s.Helper()
	s.must(node.Configure(resources))
	s.must(node.daemon.cmd.Process.Signal(syscall.SIGHUP))
}
