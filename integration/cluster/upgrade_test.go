// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An API server must not be older than a kubelet, so the control plane is upgraded first.
func TestUpgrade(t *testing.T) {
	const old, next = "v1.36", "v1.37"
	s := tell(t, "a cluster is upgraded from "+old+" to "+next+" with pods running, at last the kubelet")
	s.own("u", old)
	node := s.node(3)
	s.kubeletIs(node, old)
	pods := s.holders(node)
	s.must(s.cluster.Upgrade(s.Context(), next))
	s.step("the control plane of %s is ready", next)
	s.must(node.UpgradeKubelet(next))
	s.kubeletIs(node, next)
	s.registered(node, 3)
	s.step("the kubelet of %s has registered", next)
	s.newcomer(node, pods)
	s.allocatable(node, 3)
	id := s.widgetsOf(pods[0].Name, "main")[0]
	s.must(node.Plug(recorded()))
	s.health(pods[0].Name, id, corev1.ResourceHealthStatusUnhealthy)
	s.step("a device is unplugged, and is Unhealthy in the status of its pod")
}

// own starts a cluster that only this story uses.
func (s *story) own(suffix, release string, server ...string) {
	s.Helper()
	o := programs()
	o.Dir, o.Release, o.Server = o.Dir+suffix, release, server
	var err error
	s.cluster, err = Start(s.Context(), o)
	s.must(err)
	s.Cleanup(func() {
		if err := s.cluster.Stop(); err != nil {
			s.Error(err)
		}
		if err := (traces{}).compare(o.Dir); err != nil {
			s.Error(err)
		}
	})
	s.step("the control plane of %s is ready", release)
}

// kubeletIs waits until the Node shows the release of its kubelet.
func (s *story) kubeletIs(n *Node, release string) {
	s.Helper()
	s.await("the kubelet is not that of "+release, func(ctx context.Context) error {
		node, err := s.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && !strings.HasPrefix(node.Status.NodeInfo.KubeletVersion, release+".") {
			err = fmt.Errorf("it is %s", node.Status.NodeInfo.KubeletVersion)
		}
		return err
	})
}

func TestDaemonUpgrade(t *testing.T) {
	s := tell(t, "metalplugd is upgraded with pods running")
	node := s.node(3)
	pods := s.holders(node)
	s.must(node.UpgradeDaemon(s.Context(), "cluster/metalplugd-next"))
	s.await("the next metalplugd is not well", func(ctx context.Context) error { // wait until the kubelet knows the next metalplugd
		out, err := node.Ctl(ctx, "status", "-o", "json")
		if err != nil || !strings.Contains(out, `"next"`) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	s.allocatable(node, 3)
	s.registered(node, 3)
	s.step("it was upgraded, and the node has its devices")
	s.newcomer(node, pods)
}

func TestRemoval(t *testing.T) {
	s := tell(t, "metalplugd is purged with pods running, and installed again")
	node := s.node(3)
	pods := s.holders(node)
	s.must(node.RemoveDaemon())
	s.allocatable(node, 0)
	s.step("metalplugd was purged, and the node has no device")
	node.KillKubelet()
	s.must(node.StartKubelet())
	next := pod(node, s.label("-early"), 1)
	s.create(next)
	s.unschedulable(next.Name)
	s.remove(next.Name)
	s.same(pods)
	s.step("the kubelet was restarted, the pods run, and another is Unschedulable")
	s.must(node.StartDaemon(s.Context()))
	s.allocatable(node, 3)
	s.step("it was installed, and the node has its devices")
	s.newcomer(node, pods)
}
