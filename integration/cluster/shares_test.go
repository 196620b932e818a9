// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sharedGPU has one GPU of the recording gpu-server, which four claims can share.
func (s *story) sharedGPU() NodeOptions {
	s.Helper()
	recording, err := os.ReadFile("../../udev/recording/bundled/gpu-server.umockdev")
	s.must(err)
	return NodeOptions{Recording: string(recording), Resources: `
[[resource]]
name = "nvidia.com/gpu"
match = { PCI_SLOT_NAME = "0000:18:00.0" }
serve = "dra"
shares = 4
`}
}

// allocation returns the result of the allocation of the claim of a pod.
func (s *story) allocation(pod string) resourceapi.DeviceRequestAllocationResult {
	s.Helper()
	name := s.get(pod).Status.ResourceClaimStatuses[0].ResourceClaimName
	claim, err := s.cluster.Client.ResourceV1().ResourceClaims(space).Get(s.Context(), *name, metav1.GetOptions{})
	s.must(err)
	return claim.Status.Allocation.Devices.Results[0]
}

// gpuOf returns the value of the variable with the GPUs of a container.
func (s *story) gpuOf(pod string) string {
	s.Helper()
	const variable = "METALPLUG_NVIDIA_COM_GPU="
	env := s.log(pod, "main").Spec.Process.Env
	at := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, variable) })
	if at < 0 {
		s.Fatalf("pod %s has the environment %v", pod, env)
	}
	return strings.TrimPrefix(env[at], variable)
}

func TestClaimShares(t *testing.T) {
	s := tell(t, "four claims share a GPU, and the fifth pod runs after one of them has ended")
	node, driver := s.claimsOf("nvidia.com/gpu", s.sharedGPU(), 1)
	var pods []*corev1.Pod
	gpus, shares := make(map[string]bool), make(map[types.UID]bool)
	for i := range 4 {
		if i == 2 {
			driver.kill()
			driver = s.startDriver(node)
			s.must(node.StopDaemon())
			s.must(node.StartDaemon(s.Context()))
			s.step("metalplug-dra and metalplugd were restarted while two pods run")
		}
		p := claiming(node, s.label(fmt.Sprint("-", i)))
		s.create(p)
		pods = append(pods, s.phase(p.Name, corev1.PodRunning))
		if r := s.allocation(p.Name); r.ShareID != nil {
			shares[*r.ShareID] = true
		}
		gpus[s.gpuOf(p.Name)] = true
	}
	out, err := node.Ctl(s.Context(), "list")
	s.must(err)
	if len(gpus) != 1 || len(shares) != 4 || !strings.Contains(out, " +3") {
		s.Errorf("the pods have the GPUs %v and the shares %v: %s", gpus, shares, out)
	}
	s.step("four pods have shares of one GPU")
	fifth := claiming(node, s.label("-4"))
	s.create(fifth)
	s.event(fifth.Name, "cannot allocate all claims")
	s.step("the fifth pod waits")
	s.remove(pods[0].Name)
	s.phase(fifth.Name, corev1.PodRunning)
	s.step("one has ended, and the fifth runs")
	node.KillKubelet()
	s.must(node.StartKubelet())
	s.published(node, 1)
	all := append(slices.Clone(pods[1:]), s.get(fifth.Name))
	for _, p := range all {
		s.restartedNever(p)
	}
	s.step("the kubelet was restarted, and the pods still run")
	whole := claiming(node, s.label("-5"))
	s.wholeDevice(node, whole)
	s.create(whole)
	s.event(whole.Name, "cannot allocate all claims")
	for _, p := range all {
		s.remove(p.Name)
	}
	s.phase(whole.Name, corev1.PodRunning)
	if used := s.allocation(whole.Name).ConsumedCapacity["shares"]; used.Value() != 4 {
		s.Errorf("it has %v", used)
	}
	s.step("a pod whose claim requests four shares has waited for the end of all others")
}

func TestClaimSharesExtended(t *testing.T) {
	s := tell(t, "unchanged pods get shares through the name of a resource, and a pod that requests two gets two devices")
	node, _ := s.claims(NodeOptions{Recording: widgets(2), Resources: byClaim + "shares = 2\n"}, 2)
	s.createClass(s.label("-extended"), string(widget))
	first, second, both := pod(node, s.label("-0"), 1), pod(node, s.label("-1"), 1), pod(node, s.label("-2"), 2)
	shares, paths := make(map[types.UID]bool), make(map[string]bool)
	for _, p := range []*corev1.Pod{first, second} {
		s.create(p)
		s.phase(p.Name, corev1.PodRunning)
		path, _ := s.got(p.Name)
		paths[path] = true
		r := s.extended(p.Name)[0]
		if used := r.ConsumedCapacity["shares"]; r.ShareID != nil && used.Value() == 1 {
			shares[*r.ShareID] = true
		}
	}
	if len(paths) != 1 || len(shares) != 2 {
		s.Errorf("the pods have the nodes %v and the shares %v", paths, shares)
	}
	s.step("two pods have shares of one device")
	s.create(both)
	s.event(both.Name, "cannot allocate all claims")
	s.remove(first.Name)
	s.phase(both.Name, corev1.PodRunning)
	if all := s.extended(both.Name); len(all) != 2 || all[0].Device == all[1].Device {
		s.Errorf("it has %+v", all)
	}
	s.step("a pod that requests two has waited, although two shares of one device were free, and has a share of each device")
	s.remove(second.Name)
	s.remove(both.Name)
	split := pod(node, s.label("-3"), 1)
	split.Spec.Containers = append(split.Spec.Containers, asking("other", 1))
	s.create(split)
	s.phase(split.Name, corev1.PodRunning)
	path, _ := s.got(split.Name)
	other := s.log(split.Name, "other").Spec.Linux.Devices
	if all := s.extended(split.Name); len(all) != 2 || all[0].Device != all[1].Device || len(other) != 1 || other[0].Path != path {
		s.Errorf("it has %+v; the second container has %v", all, other)
	}
	s.step("both containers of a pod have shares of one device")
}

// extended returns the devices of the claim that the scheduler has made for a pod.
func (s *story) extended(pod string) []resourceapi.DeviceRequestAllocationResult {
	s.Helper()
	name := s.get(pod).Status.ExtendedResourceClaimStatus.ResourceClaimName
	claim, err := s.cluster.Client.ResourceV1().ResourceClaims(space).Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	return claim.Status.Allocation.Devices.Results
}

// wholeDevice changes a claiming pod, so that its claim requests four shares of a device.
func (s *story) wholeDevice(node *Node, p *corev1.Pod) {
	s.Helper()
	name := node.Name + "-whole"
	templates := s.cluster.Client.ResourceV1().ResourceClaimTemplates(space)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: node.Name,
		Capacity:        &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"shares": resource.MustParse("4")}},
	}}}
	_, err := templates.Create(s.Context(), template, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() { s.must(templates.Delete(context.WithoutCancel(s.Context()), name, metav1.DeleteOptions{})) })
	p.Spec.ResourceClaims[0].ResourceClaimTemplateName = &name
}

func TestClaimSharesUnsupported(t *testing.T) {
	s := tell(t, "an API server without DRAConsumableCapacity gets no shared devices, and metalplug-dra shows why")
	s.own("s", release(), "--feature-gates=DRAConsumableCapacity=false")
	node, _ := s.claimsOf("nvidia.com/gpu", s.sharedGPU(), 0)
	s.await("metalplug-dra does not show the reason", func(context.Context) error {
		if log := node.tails("metalplug-dra"); !strings.Contains(log, "has not enabled DRAConsumableCapacity") {
			return fmt.Errorf("the log is %q", log)
		}
		return nil
	})
	p := claiming(node, s.label(""))
	s.create(p)
	s.event(p.Name, "cannot allocate all claims")
	s.published(node, 0)
	s.step("a pod waits")
}
