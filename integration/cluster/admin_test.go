// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// monitoring changes a claiming pod, so that it gets all devices of the node with admin access (KEP-5018).
func (s *story) monitoring(node *Node, p *corev1.Pod) *corev1.Pod {
	s.Helper()
	name, yes := node.Name+"-admin", true
	_, err := s.cluster.Client.CoreV1().Namespaces().Patch(s.Context(), space, types.MergePatchType,
		[]byte(`{"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}`), metav1.PatchOptions{})
	s.must(err)
	templates := s.cluster.Client.ResourceV1().ResourceClaimTemplates(space)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "all", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: node.Name, AllocationMode: resourceapi.DeviceAllocationModeAll, AdminAccess: &yes,
	}}}
	_, err = templates.Create(s.Context(), template, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() { s.must(templates.Delete(context.WithoutCancel(s.Context()), name, metav1.DeleteOptions{})) })
	p.Spec.ResourceClaims[0].ResourceClaimTemplateName = &name
	return p
}

func TestClaimAdmin(t *testing.T) {
	s := tell(t, "a pod with admin access gets the devices that other pods hold, and its end releases none")
	node, _ := s.claims(NodeOptions{Recording: widgets(2), Resources: byClaim}, 2)
	first, second, third := claiming(node, s.label("-0")), claiming(node, s.label("-1")), claiming(node, s.label("-2"))
	s.create(first)
	s.phase(first.Name, corev1.PodRunning)
	monitor := s.monitoring(node, claiming(node, s.label("-monitor")))
	s.create(monitor)
	s.phase(monitor.Name, corev1.PodRunning)
	c := s.log(monitor.Name, "main")
	if c.Spec == nil || len(c.Spec.Linux.Devices) != 2 || !slices.Contains(c.Spec.Process.Env, environment+"="+widgetID(0)+","+widgetID(1)) {
		s.Errorf("the pod with admin access has %+v", c)
	}
	s.step("one device is held, and a pod with admin access has both")
	s.create(second)
	s.phase(second.Name, corev1.PodRunning)
	holders := s.claimedBy(node)
	if len(holders) != 2 || strings.Contains(fmt.Sprint(holders), monitor.Name) {
		s.Errorf("the devices are held by %v", holders)
	}
	s.step("the other device went to the next pod")
	s.remove(monitor.Name)
	s.create(third)
	s.event(third.Name, "cannot allocate all claims")
	if now := s.claimedBy(node); !maps.Equal(now, holders) {
		s.Errorf("the devices were held by %v, and now by %v", holders, now)
	}
	s.step("the pod with admin access is gone, and both devices are held as before")
	s.remove(first.Name)
	s.phase(third.Name, corev1.PodRunning)
	s.step("a device was released, and a pod that waited runs with it")
}

// claimedBy returns the claims of a node's devices.
func (s *story) claimedBy(node *Node) map[string]string {
	s.Helper()
	out, err := node.Ctl(s.Context(), "list", "-o", "json")
	s.must(err)
	var devices []struct {
		ID     string
		Claims []struct{ Name string }
	}
	s.must(json.Unmarshal([]byte(out), &devices))
	by := make(map[string]string)
	for _, d := range devices {
		for _, c := range d.Claims {
			by[d.ID] = c.Name
		}
	}
	return by
}

func TestClaimAdminDisk(t *testing.T) {
	s := tell(t, "a container with admin access cannot write to the disk of another pod, and delays nothing once it has ended")
	disk, _ := s.disk()
	node, _ := s.claims(NodeOptions{Containerd: true, Disk: disk, Resources: erasedByClaim(disk)}, 1)
	holding := func(name string, command ...string) *corev1.Pod {
		p, by := filling(node, name, 0, command...), claiming(node, name)
		p.Spec.ResourceClaims, p.Spec.Containers[0].Resources = by.Spec.ResourceClaims, by.Spec.Containers[0].Resources
		return p
	}
	first, second := holding(s.label("-0"), "/fill", "--hold", disk), holding(s.label("-1"), "/fill", disk)
	s.create(first)
	s.blank(first.Name)
	s.step("a pod has written on the disk and holds it")
	monitor := s.monitoring(node, holding(s.label("-admin"), "/fill", disk))
	s.create(monitor)
	s.phase(monitor.Name, corev1.PodFailed)
	if got := s.printed(monitor.Name); !strings.Contains(got, "operation not permitted") {
		s.Errorf("the pod with admin access printed %q", got)
	}
	s.phase(first.Name, corev1.PodRunning)
	s.step("a pod with admin access cannot open it to write")
	s.create(second)
	s.remove(first.Name)
	s.phase(second.Name, corev1.PodSucceeded)
	s.blank(second.Name)
	s.step("the next pod has found it erased")
}
