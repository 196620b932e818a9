// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// byClaim configures the widgets for claims.
const byClaim = resources + `serve = "dra"
`

// claims starts a node with metalplug-dra. It creates a class for the devices of the node, and a template of claims for one
// device. It waits until the API server shows n devices.
func (s *story) claims(o NodeOptions, n int) (node *Node, driver *process) {
	s.Helper()
	return s.claimsOf(widget, o, n)
}

// claimsOf is like claims for any resource.
func (s *story) claimsOf(resource corev1.ResourceName, o NodeOptions, n int) (node *Node, driver *process) {
	s.Helper()
	o.Name = s.label("")
	node = s.start(o)
	s.createClassOf(resource, node.Name, "")
	driver = s.startDriver(node)
	s.published(node, n)
	s.step("node %s has %d devices for claims", o.Name, n)
	return node, driver
}

// startDriver starts metalplug-dra on a node. At the end of the story, metalplug-dra ends after the pods.
func (s *story) startDriver(node *Node, flags ...string) *process {
	s.Helper()
	p, err := node.startDriver(flags...)
	return s.driver(node, p, err)
}

// startDriver is story.startDriver for a caller that ends the driver.
func (n *Node) startDriver(flags ...string) (*process, error) {
	return n.enter("metalplug-dra", append([]string{
		"/run/bin/metalplug-dra", "--kubeconfig=" + n.cluster.File("node-"+n.Name+".kubeconfig"), "--node=" + n.Name,
	}, flags...)...)
}

// driver returns the started driver p, and kills it at the end of the story.
func (s *story) driver(node *Node, p *process, err error) *process {
	s.Helper()
	s.must(err)
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("%s", node.tails("metalplug-dra"))
		}
		p.kill()
	})
	return p
}

// createClass creates a class and a template of claims for one widget. Both have this name.
func (s *story) createClass(name, extended string) {
	s.Helper()
	s.createClassOf(widget, name, extended)
}

func (s *story) createClassOf(resource corev1.ResourceName, name, extended string) {
	s.Helper()
	s.createClassFor(fmt.Sprintf(`device.driver == "metalplug.io" && device.attributes["metalplug.io"].resource == %q`, resource), name, extended)
}

// createClassFor creates a class of the devices for which a CEL expression is true, and a claim template with the same name.
func (s *story) createClassFor(expression, name, extended string) {
	s.Helper()
	api := s.cluster.Client.ResourceV1()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	if extended != "" {
		class.Spec.ExtendedResourceName = &extended
	}
	_, err := api.DeviceClasses().Create(s.Context(), class, metav1.CreateOptions{})
	s.must(err)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: space}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{
		Name: "widget", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: name},
	}}
	_, err = api.ResourceClaimTemplates(space).Create(s.Context(), template, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		ctx := context.WithoutCancel(s.Context())
		if err := api.ResourceClaimTemplates(space).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !isGone(err) {
			s.Error(err)
		}
		if err := api.DeviceClasses().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !isGone(err) {
			s.Error(err)
		}
	})
}

// claiming returns a pod with a claim for one device of the node.
func claiming(node *Node, name string) *corev1.Pod {
	p := pod(node, name, 0)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: &node.Name}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "device"}}
	return p
}

// slicesOf returns the ResourceSlices of a node.
func (s *story) slicesOf(ctx context.Context, node *Node) ([]resourceapi.ResourceSlice, error) {
	list, err := s.cluster.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// published waits until the ResourceSlices of a node have n devices without a taint, and returns the taints of the others.
func (s *story) published(node *Node, n int, taints ...string) {
	s.Helper()
	s.await(fmt.Sprintf("%s has not %d devices and the taints %v", node.Name, n, taints), func(ctx context.Context) error {
		all, err := s.slicesOf(ctx, node)
		if err != nil {
			return err
		}
		free, found := 0, []string{}
		for _, slice := range all {
			for _, d := range slice.Spec.Devices {
				for _, t := range d.Taints {
					found = append(found, fmt.Sprint(d.Name, " ", t.Key, " ", t.Effect))
				}
				if len(d.Taints) == 0 {
					free++
				}
			}
		}
		if slices.Sort(found); free != n || !slices.Equal(found, taints) {
			return fmt.Errorf("%d devices, taints %v", free, found)
		}
		return nil
	})
}

// got returns the device node and the ID that a container got through CDI.
func (s *story) got(pod string) (node, id string) {
	s.Helper()
	c := s.log(pod, "main")
	if c.Spec == nil || len(c.Spec.Linux.Devices) != 1 || len(c.Devices) > 0 {
		s.Fatalf("pod %s got %+v", pod, c)
	}
	for _, e := range c.Spec.Process.Env {
		if text, ok := strings.CutPrefix(e, environment+"="); ok {
			id = text
		}
	}
	return c.Spec.Linux.Devices[0].Path, id
}

func TestClaim(t *testing.T) {
	s := tell(t, "pods get devices through claims, and an unchanged pod gets one through the name of its resource")
	node, _ := s.claims(NodeOptions{Recording: widgets(2), Resources: byClaim}, 2)
	first := claiming(node, s.label("-0"))
	s.create(first)
	s.phase(first.Name, corev1.PodRunning)
	path, id := s.got(first.Name)
	if want := map[string]string{"/dev/widget0": widgetID(0), "/dev/widget1": widgetID(1)}; want[path] == "" || want[path] != id {
		s.Errorf("the pod has %s with the ID %q", path, id)
	}
	s.step("a pod with a claim runs with %s", path)
	s.createClass(s.label("-extended"), string(widget))
	second := pod(node, s.label("-1"), 1)
	s.create(second)
	s.phase(second.Name, corev1.PodRunning)
	if other, _ := s.got(second.Name); other == path {
		s.Errorf("both pods have %s", path)
	}
	s.step("a pod that requests %s runs with the other one", widget)
	next := claiming(node, s.label("-2"))
	s.create(next)
	s.remove(first.Name)
	s.phase(next.Name, corev1.PodRunning)
	if again, _ := s.got(next.Name); again != path {
		s.Errorf("the next pod has %s", again)
	}
	s.step("the first pod was deleted, and the next one runs with its device")
}

func TestClaimRestarts(t *testing.T) {
	s := tell(t, "the kubelet, metalplugd and metalplug-dra are restarted with a pod running")
	node, driver := s.claims(NodeOptions{Recording: widgets(2), Resources: byClaim}, 2)
	first := claiming(node, s.label("-0"))
	s.create(first)
	before := s.phase(first.Name, corev1.PodRunning)
	path, _ := s.got(first.Name)
	old := s.identities(node)
	node.KillKubelet()
	s.must(node.StartKubelet())
	s.await("the kubelet has not removed the slices", func(ctx context.Context) error {
		if maps.Equal(old, s.identities(node)) {
			return fmt.Errorf("they are %v", old)
		}
		return nil
	})
	began := time.Now()
	s.published(node, 2)
	s.step("the kubelet was restarted and has removed the slices, which are back %v later", time.Since(began).Round(time.Millisecond))
	old = s.identities(node)
	driver.kill()
	s.startDriver(node)
	s.must(node.StopDaemon())
	s.must(node.StartDaemon(s.Context()))
	second := claiming(node, s.label("-1"))
	s.create(second)
	s.phase(second.Name, corev1.PodRunning)
	if other, _ := s.got(second.Name); other == path {
		s.Errorf("both pods have %s", path)
	}
	if now := s.identities(node); !maps.Equal(old, now) {
		s.Errorf("the slices were %v and are %v", old, now)
	}
	s.restartedNever(before)
	s.step("metalplug-dra and metalplugd were restarted, the slices are those of before, and another pod runs")
	s.remove(first.Name)
	s.step("the first pod is gone")
}

// restartedNever checks that a pod runs in the same container as before.
func (s *story) restartedNever(before *corev1.Pod) {
	s.Helper()
	now := s.phase(before.Name, corev1.PodRunning)
	if is, was := now.Status.ContainerStatuses[0].ContainerID, before.Status.ContainerStatuses[0].ContainerID; is != was {
		s.Errorf("pod %s has container %s instead of %s", now.Name, is, was)
	}
}

// identities returns the UIDs of a node's ResourceSlices. The keys are names.
func (s *story) identities(node *Node) map[string]types.UID {
	s.Helper()
	all, err := s.slicesOf(s.Context(), node)
	s.must(err)
	by := make(map[string]types.UID)
	for _, slice := range all {
		by[slice.Name] = slice.UID
	}
	return by
}

func TestClaimReboot(t *testing.T) {
	s := tell(t, "the node reboots, and the pod of a claim runs again with its device")
	node, driver := s.claims(NodeOptions{Recording: widgets(2), Resources: byClaim}, 2)
	p := claiming(node, s.label(""))
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	s.create(p)
	before := s.phase(p.Name, corev1.PodRunning)
	path, _ := s.got(p.Name)
	driver.kill()
	s.must(node.Reboot(s.Context()))
	s.startDriver(node)
	s.restarted(before)
	if now, _ := s.got(p.Name); now != path {
		s.Errorf("the pod has %s, and had %s before", now, path)
	}
	s.step("it runs again with %s", path)
	s.remove(p.Name) // must happen while metalplug-dra runs
}

func TestClaimUnplug(t *testing.T) {
	s := tell(t, "a cordon leaves the pod of a claim alone, and it is evicted when its device is unplugged")
	node, _ := s.claims(NodeOptions{Recording: widgets(2), Resources: byClaim}, 2)
	p := claiming(node, s.label("-0"))
	s.create(p)
	before := s.phase(p.Name, corev1.PodRunning)
	path, id := s.got(p.Name)
	there := 0
	if path == "/dev/widget0" {
		there = 1
	}
	s.ctl(node, "cordon", id, "--reason", "a story")
	s.published(node, 1, strings.ToLower(id)+" metalplug.io/cordoned NoSchedule")
	s.claimHealth(p.Name, corev1.ResourceHealthStatusUnhealthy)
	s.step("its device was cordoned and has a taint, and the status of the pod shows that it is Unhealthy")
	s.ctl(node, "uncordon", id)
	s.published(node, 2)
	s.claimHealth(p.Name, corev1.ResourceHealthStatusHealthy)
	s.restartedNever(before)
	s.step("it was uncordoned and has no taint, and the pod runs")
	s.must(node.Plug(recorded(there)))
	s.published(node, 1, strings.ToLower(id)+" metalplug.io/gone NoExecute")
	s.step("its device was unplugged, and has a taint")
	s.await("pod "+p.Name+" was not evicted", func(context.Context) error {
		if err := s.exists(p.Name); !isGone(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	s.step("the pod was evicted")
	s.must(node.Plug(widgets(2)))
	s.published(node, 2)
	s.step("the device was plugged in again, and has no taint")
}

// The parts of a divided GPU are devices of their own.
func TestClaimPartitions(t *testing.T) {
	const divided = "MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77-"
	for _, c := range []struct {
		recording, resource, environment string
		ids                              []string
	}{
		{"mig-node", "nvidia.com/gpu", "METALPLUG_NVIDIA_COM_GPU", []string{
			"GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", divided + "gi1-ci0", divided + "gi2-ci0", divided + "gi2-ci1",
		}},
		{"amd-node", "amd.com/gpu", "METALPLUG_AMD_COM_GPU", []string{
			"gpu-0cb1e29c658cda14-dpx0", "gpu-0cb1e29c658cda14-dpx1", "gpu-0fd630f1f29d0da9", "gpu-953f48f1a09f76b5", "gpu-95e60af593bd04cf",
		}},
	} {
		t.Run(c.recording, func(t *testing.T) {
			s := tell(t, "pods get GPUs and the partitions of a GPU through claims, on the recording "+c.recording)
			recording, err := os.ReadFile("../../udev/recording/bundled/" + c.recording + ".umockdev")
			s.must(err)
			node, _ := s.claimsOf(corev1.ResourceName(c.resource), NodeOptions{
				Recording: string(recording), Resources: fmt.Sprintf("[[resource]]\nname = %q\nserve = \"dra\"\n", c.resource),
			}, len(c.ids))
			given := make(map[string]string) // IDs by the nodes of a container
			for i := range c.ids {
				p := claiming(node, s.label(fmt.Sprintf("-%d", i)))
				s.create(p)
				s.phase(p.Name, corev1.PodRunning)
				var nodes []string
				spec := s.log(p.Name, "main").Spec
				for _, d := range spec.Linux.Devices {
					nodes = append(nodes, d.Path)
				}
				for _, e := range spec.Process.Env {
					if id, ok := strings.CutPrefix(e, c.environment+"="); ok {
						given[strings.Join(slices.Sorted(slices.Values(nodes)), " ")] = id
					}
				}
			}
			if got := slices.Sorted(maps.Values(given)); !slices.Equal(got, c.ids) {
				s.Errorf("the pods have %v", given)
			}
			s.step("%d pods have the parts and the other GPUs, and no two have the same nodes", len(c.ids))
		})
	}
}

// ctl runs metalplugctl on a node.
func (s *story) ctl(node *Node, args ...string) {
	s.Helper()
	if out, err := node.Ctl(s.Context(), args...); err != nil {
		s.Fatalf("metalplugctl %v: %v: %s", args, err, out)
	}
}

// claimHealth waits until the status of a pod shows this health for its claimed device.
func (s *story) claimHealth(name string, want corev1.ResourceHealthStatus) {
	s.Helper()
	s.await("the device of "+name+" is not "+string(want), func(context.Context) error {
		status := s.get(name).Status.ContainerStatuses[0].AllocatedResourcesStatus
		for _, r := range status {
			if strings.HasPrefix(string(r.Name), "claim:") && len(r.Resources) == 1 && r.Resources[0].Health == want {
				return nil
			}
		}
		return fmt.Errorf("the status is %v", status)
	})
}

// erasedByClaim returns a resource of a disk that is offered to claims and erased after each.
func erasedByClaim(disk string) string {
	return fmt.Sprintf(`
[[resource]]
name = %q
class = "node"
serve = "dra"
match = { DEVNAME = %q }
[resource.reset]
method = "none"
scrub = "zero"
`, widget, disk)
}

func TestClaimErased(t *testing.T) {
	s := tell(t, "three pods with claims write on one disk, and each finds it erased")
	disk, _ := s.disk()
	node, _ := s.claims(NodeOptions{Disk: disk, Resources: erasedByClaim(disk)}, 1)
	var names []string
	for i := range 3 {
		p := claiming(node, s.label(fmt.Sprintf("-%d", i)))
		p.Spec.Containers[0].Command = shell(fmt.Sprintf(
			"cmp -s -n %[2]d %[1]s /dev/zero && echo blank || echo data; dd if=/dev/urandom of=%[1]s bs=1M count=16 conv=fsync status=none", disk, diskSize))
		s.create(p)
		names = append(names, p.Name)
	}
	for left := names; len(left) > 0; {
		left = s.succeeded(left)
	}
	for _, name := range names {
		if found := s.output(name); found != "blank" {
			s.Errorf("%s found %s", name, found)
		}
	}
	s.step("all have succeeded")
}

// Each identity is created as docs/dra.md describes. It may publish the devices of its own node, but not those of another
// node.
func TestClaimIdentity(t *testing.T) {
	t.Run("token", func(t *testing.T) {
		s := tell(t, "metalplug-dra acts as its node with a token that is bound to the node, and not as another node")
		s.identity(func(node *Node) []string { return s.token(node, "identity.yaml") })
	})
	t.Run("policy", func(t *testing.T) {
		s := tell(t, "metalplug-dra has a token with a policy for its node, and publishes nothing for another node")
		s.identity(func(node *Node) []string { return append(s.token(node, "policy.yaml"), "--impersonate=false") })
	})
	t.Run("certificate", func(t *testing.T) {
		s := tell(t, "metalplug-dra has a certificate of its node, and publishes nothing for another node")
		s.identity(s.certificate)
	})
	t.Run("kubelet", func(t *testing.T) {
		s := tell(t, "metalplug-dra has the kubeconfig of the kubelet, and publishes nothing for another node")
		s.identity(func(*Node) []string { return nil })
	})
}

// token applies a shipped manifest and returns the flags of metalplug-dra for a token of the node.
func (s *story) token(node *Node, manifest string) []string {
	s.Helper()
	manifest = "../../packaging/kubernetes/" + manifest
	s.kubectl("apply", "-f", manifest, "-f", "../../packaging/kubernetes/classes.yaml")
	s.Cleanup(func() { s.kubectl("delete", "-f", "../../packaging/kubernetes/classes.yaml", "-f", manifest) })
	token := s.kubectl("-n", "metalplug", "create", "token", "metalplug-dra",
		"--bound-object-kind", "Node", "--bound-object-name", node.Name, "--duration", "8760h")
	s.must(os.WriteFile(node.path("var/token"), []byte(token), 0o600))
	return []string{"--token=/var/token"}
}

// certificate requests a certificate for the node, and returns the flags with which metalplug-dra uses it. The controllers
// approve the request, as in a cluster of kubeadm.
func (s *story) certificate(node *Node) []string {
	s.Helper()
	s.kubectl("create", "clusterrolebinding", node.Name, "--group=system:nodes",
		"--clusterrole=system:certificates.k8s.io:certificatesigningrequests:selfnodeclient")
	s.Cleanup(func() { s.kubectl("delete", "clusterrolebinding", node.Name) })
	s.must(os.Mkdir(node.path("path"), 0o755))
	s.must(os.Symlink(s.cluster.program("cluster/kubectl-"+release()), node.path("path/kubectl")))
	c := exec.Command("../../packaging/kubernetes/certificate.sh", node.Name, s.cluster.File("node-"+node.Name+".kubeconfig"), node.path("var/dra/kubeconfig"))
	c.Env = append(os.Environ(), "PATH="+node.path("path")+":"+os.Getenv("PATH"))
	if out, err := c.CombinedOutput(); err != nil {
		s.Fatalf("certificate.sh: %v: %s", err, out)
	}
	return []string{"--kubeconfig=/var/dra/kubeconfig"}
}

// identity runs a pod with a claim while metalplug-dra uses an identity of its node. It checks that a driver with this
// identity cannot publish devices of another node.
func (s *story) identity(flags func(*Node) []string) {
	s.Helper()
	node := s.start(NodeOptions{Name: s.label(""), Recording: widgets(1), Resources: byClaim})
	s.createClass(node.Name, "")
	identity := flags(node)
	s.startDriver(node, identity...)
	s.published(node, 1)
	p := claiming(node, s.label("-0"))
	s.create(p)
	s.phase(p.Name, corev1.PodRunning)
	s.step("a pod runs with its claim")
	if out, err := node.Ctl(s.Context(), "status", "-o", "json"); !strings.Contains(out, `"identity": "acts as system:`) {
		s.Errorf("metalplugd does not show the driver's identity: %v: %s", err, out)
	}
	s.must(os.MkdirAll(node.path("var/other/plugins_registry"), 0o755)) // the directory of another kubelet
	other := &Node{Name: node.Name + "-other"}
	nodes := s.cluster.Client.CoreV1().Nodes()
	_, err := nodes.Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other.Name}}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(s.Context()), other.Name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	driver, err := node.enter("other", append([]string{
		"/run/bin/metalplug-dra", "--kubeconfig=" + s.cluster.File("node-"+node.Name+".kubeconfig"), "--node=" + other.Name, "--kubelet=/var/other",
	}, identity...)...)
	s.must(err)
	defer driver.kill()
	s.await("the API server has not refused the identity", func(context.Context) error {
		if log := node.tails("other"); !strings.Contains(log, "forbidden") {
			return fmt.Errorf("the log is %q", log)
		}
		return nil
	})
	if all := s.identities(other); len(all) > 0 {
		s.Errorf("the other node has the slices %v", all)
	}
	s.step("with the same identity, a driver of another node can publish nothing")
}

// kubectl runs kubectl with the rights of an administrator and returns its output.
func (s *story) kubectl(args ...string) string {
	s.Helper()
	c := exec.Command(s.cluster.program("cluster/kubectl-"+release()), append([]string{"--kubeconfig", s.cluster.File("admin.kubeconfig")}, args...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		s.Errorf("kubectl %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}
