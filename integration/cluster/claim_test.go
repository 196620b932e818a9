// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The recorded server has four PCIe roots with one switch each. Two GPUs and two InfiniBand adapters are below each switch.
func TestClaimTopology(t *testing.T) {
	s := tell(t, "eight pods get a GPU and an InfiniBand adapter below one switch or root, with the shipped templates of claims")
	recording, err := os.ReadFile("../../udev/recording/bundled/gpu-server.umockdev")
	s.must(err)
	node, _ := s.claimsOf("nvidia.com/gpu", NodeOptions{Recording: string(recording), Resources: `
[[resource]]
name = "nvidia.com/gpu"
serve = "dra"
[[resource]]
name = "metalplug.io/infiniband"
serve = "dra"
`}, 16)
	const classes, templates = "../../packaging/kubernetes/classes.yaml", "../../packaging/kubernetes/topology.yaml"
	s.kubectl("-n", space, "apply", "-f", classes, "-f", templates)
	s.Cleanup(func() { s.kubectl("-n", space, "delete", "-f", classes, "-f", templates) })
	all, err := s.slicesOf(s.Context(), node)
	s.must(err)
	attributes := make(map[string]map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) // keys are the names of devices
	for _, slice := range all {
		for _, d := range slice.Spec.Devices {
			attributes[d.Name] = d.Attributes
		}
	}
	given := make(map[string]bool)
	for i := range 8 {
		p := claiming(node, s.label(fmt.Sprintf("-%d", i)))
		template, attribute := "gpu-and-infiniband-switch", resourceapi.QualifiedName("switch")
		if i%2 == 1 {
			template, attribute = "gpu-and-infiniband-root", "resource.kubernetes.io/pcieRoot"
		}
		p.Spec.ResourceClaims[0].ResourceClaimTemplateName = &template
		s.create(p)
		s.phase(p.Name, corev1.PodRunning)
		claim, err := s.cluster.Client.ResourceV1().ResourceClaims(space).Get(s.Context(), *s.get(p.Name).Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
		s.must(err)
		got := claim.Status.Allocation.Devices.Results
		if len(got) != 2 || given[got[0].Device] || given[got[1].Device] {
			s.Fatalf("pod %s has %v, and pods have %v", p.Name, got, given)
		}
		given[got[0].Device], given[got[1].Device] = true, true
		if a, b := attributes[got[0].Device][attribute].StringValue, attributes[got[1].Device][attribute].StringValue; a == nil || b == nil || *a != *b {
			s.Errorf("%s and %s have different values of %s", got[0].Device, got[1].Device, attribute)
		}
	}
	s.step("the pods have all GPUs and adapters, and both devices of each pod are below one switch")
}

func TestClaimSeveral(t *testing.T) {
	s := tell(t, "two pods share one claim, and a third pod has two claims")
	node, _ := s.claims(NodeOptions{Recording: widgets(3), Resources: byClaim}, 3)
	claim := s.createClaim(s.label("-shared"), node.Name).Name
	s.Cleanup(func() { s.kubectl("-n", space, "delete", "resourceclaim", claim) })
	var sharing [2]*corev1.Pod
	for i := range sharing {
		p := claiming(node, s.label(fmt.Sprintf("-%d", i)))
		p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "device", ResourceClaimName: &claim}
		s.create(p)
		sharing[i] = s.phase(p.Name, corev1.PodRunning)
	}
	path, _ := s.got(sharing[0].Name)
	if other, _ := s.got(sharing[1].Name); other != path {
		s.Errorf("the pods of one claim have %s and %s", path, other)
	}
	s.step("two pods run with %s", path)
	two := claiming(node, s.label("-two"))
	two.Spec.ResourceClaims = append(two.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "more", ResourceClaimTemplateName: &node.Name})
	two.Spec.Containers[0].Resources.Claims = append(two.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "more"})
	s.create(two)
	s.phase(two.Name, corev1.PodRunning)
	nodes := []string{path}
	for _, d := range s.log(two.Name, "main").Spec.Linux.Devices {
		nodes = append(nodes, d.Path)
	}
	if slices.Sort(nodes); !slices.Equal(nodes, []string{"/dev/widget0", "/dev/widget1", "/dev/widget2"}) {
		s.Errorf("the pods have %v", nodes)
	}
	s.step("a pod with two claims runs with the other devices")
	next := claiming(node, s.label("-next"))
	s.create(next)
	s.remove(sharing[0].Name)
	s.restartedNever(sharing[1])
	if phase := s.get(next.Name).Status.Phase; phase != corev1.PodPending {
		s.Errorf("while one pod of the claim runs, the next pod is %s", phase)
	}
	s.remove(sharing[1].Name)
	s.phase(next.Name, corev1.PodRunning)
	if again, _ := s.got(next.Name); again != path {
		s.Errorf("the next pod has %s", again)
	}
	s.step("both pods of the claim were deleted, and only then the next pod runs with %s", path)
}

func TestClaimRefused(t *testing.T) {
	s := tell(t, "a claim with parameters is refused, an event of its pod shows why, and another pod gets the device")
	node, _ := s.claims(NodeOptions{Recording: widgets(1), Resources: byClaim}, 1)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: s.label("-wrong")}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: node.Name}}}
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "metalplug.io", Parameters: runtime.RawExtension{Raw: []byte(`{"erase": false}`)}},
	}}}
	_, err := s.cluster.Client.ResourceV1().ResourceClaims(space).Create(s.Context(), claim, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() { s.kubectl("-n", space, "delete", "resourceclaim", claim.Name) })
	p := claiming(node, s.label("-0"))
	p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "device", ResourceClaimName: &claim.Name}
	s.create(p)
	s.event(p.Name, "has parameters, which metalplug does not support")
	s.step("the pod waits, and its event shows why")
	s.remove(p.Name)
	next := claiming(node, s.label("-1"))
	s.create(next)
	s.phase(next.Name, corev1.PodRunning)
	s.step("it was deleted, and another pod runs with the device")
}
