// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

var speed = flag.Int("speed", 5, "how often TestClaimSpeed measures each time")

// TestClaimSpeed prints how long claims take, and beside it a floor from the same run. It checks no time. docs/dra.md has
// figures.
func TestClaimSpeed(t *testing.T) {
	s := tell(t, "how long claims take, and what metalplug-dra needs at rest")
	node := s.start(NodeOptions{Name: s.label(""), Recording: widgets(4), Resources: byClaim})
	s.createClass(node.Name, "")
	driver := s.startDriver(node, "--kubeconfig="+s.cluster.File("admin.kubeconfig")) // the node may not read a claim without a pod
	s.published(node, 4)
	s.slicesSpeed(node)
	s.prepareSpeed(node)
	s.podSpeed(node)
	<-time.After(*costTime) // the kubelet releases the last pod
	before := counter(s, driver, "voluntary_ctxt_switches")
	<-time.After(*costTime)
	s.Logf("metalplug-dra at rest: %d KiB of RSS, %d KiB of it anonymous, %d wake-ups of its threads in %v",
		counter(s, driver, "VmRSS"), counter(s, driver, "RssAnon"), counter(s, driver, "voluntary_ctxt_switches")-before, *costTime)
	s.wipeSpeed(node)
	s.step("all was measured")
}

// times prints the median, the 99th percentile and the maximum of durations.
func (s *story) times(what string, all []time.Duration) {
	s.Helper()
	slices.Sort(all)
	rank := func(percent int) time.Duration { return all[(len(all)*percent+99)/100-1].Round(10 * time.Microsecond) }
	s.Logf("%-57s p50 %v, p99 %v, maximum %v of %d", what, rank(50), rank(99), rank(100), len(all))
}

// seen returns how long it takes from the start of do until a watcher has an object that is right.
func seen[T any](s *story, w watch.Interface, do func(), right func(T) bool) time.Duration {
	s.Helper()
	began := time.Now()
	do()
	for {
		select {
		case e := <-w.ResultChan():
			if object, ok := e.Object.(T); ok && right(object) {
				return time.Since(began)
			}
		case <-time.After(startLimit):
			s.Fatalf("nothing was seen for %v", startLimit)
		}
	}
}

// lastEvent returns the time at which metalplugd received the last event of the hardware. The test takes this time instead of the
// time at which it saves the recording, because metalplugd reads a recording only after it has been unchanged for 20 ms.
func (s *story) lastEvent(node *Node) time.Time {
	s.Helper()
	out, _ := node.Ctl(s.Context(), "status", "-o", "json") // fails while a device is gone
	var status struct{ Events struct{ Last time.Time } }
	s.must(json.Unmarshal([]byte(out), &status))
	return status.Events.Last
}

// slicesSpeed measures from an event of the hardware to the ResourceSlice at a watcher. The floor is a change of a slice by the
// watcher itself.
func (s *story) slicesSpeed(node *Node) {
	s.Helper()
	api := s.cluster.Client.ResourceV1().ResourceSlices()
	w, err := api.Watch(s.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	s.must(err)
	defer w.Stop()
	var plugged, floor []time.Duration
	for i := range *speed {
		for _, n := range []int{3, 4} {
			seen(s, w, func() { s.must(node.Plug(widgets(n))) }, func(slice *resourceapi.ResourceSlice) bool {
				taints := 0
				for _, d := range slice.Spec.Devices {
					taints += len(d.Taints)
				}
				return len(slice.Spec.Devices)-taints == n
			})
			received := time.Now()
			plugged = append(plugged, received.Sub(s.lastEvent(node)))
		}
		all, err := s.slicesOf(s.Context(), node)
		s.must(err)
		mark := strconv.Itoa(i)
		floor = append(floor, seen(s, w, func() {
			all[0].Annotations = map[string]string{"speed": mark}
			_, err := api.Update(s.Context(), &all[0], metav1.UpdateOptions{})
			s.must(err)
		}, func(slice *resourceapi.ResourceSlice) bool { return slice.Annotations["speed"] == mark }))
	}
	var back []time.Duration
	for range 2 * *speed { // "make bench" needs 100 for the 99th percentile
		<-time.After(2 * time.Second) // as after a kubelet restart, metalplug-dra then has listed the slices again
		all, err := s.slicesOf(s.Context(), node)
		s.must(err)
		back = append(back, seen(s, w, func() {
			s.must(api.Delete(s.Context(), all[0].Name, metav1.DeleteOptions{}))
		}, func(slice *resourceapi.ResourceSlice) bool { return slice.UID != all[0].UID }))
	}
	s.times("slice deleted to slice at a watcher", back)
	s.times("event of the hardware to slice at a watcher", plugged)
	s.times("floor: slice changed to slice at a watcher", floor)
}

// manyWidgets is the number of devices in 157 ResourceSlices.
const manyWidgets = 10_000

// wipeSpeed measures how long a slice is missing if a client deletes all slices of the node at once, as the kubelet does when it
// starts. Each slice counts from its own deletion. The floors are the deletions alone, and the creation of the same slices for
// another driver by this test. The library's controller also creates one slice after the other.
func (s *story) wipeSpeed(node *Node) {
	s.Helper()
	s.must(node.Plug(widgets(manyWidgets)))
	s.published(node, manyWidgets)
	api := s.cluster.Client.ResourceV1().ResourceSlices()
	own := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name}
	var missing, all, deletions, creations []time.Duration
	for range max(1, *speed/10) {
		<-time.After(2 * time.Second) // as after a kubelet restart, metalplug-dra then has listed the slices again
		list, err := api.List(s.Context(), own)
		s.must(err)
		w, err := api.Watch(s.Context(), metav1.ListOptions{FieldSelector: own.FieldSelector, ResourceVersion: list.ResourceVersion})
		s.must(err)
		began, deleted, failed := time.Now(), make(map[string]time.Time), make(chan error, 1) // the keys are the slices' first devices
		go func() { failed <- api.DeleteCollection(s.Context(), metav1.DeleteOptions{}, own) }()
		for back := 0; back < len(list.Items) || failed != nil; {
			select {
			case err := <-failed:
				s.must(err)
				deletions, failed = append(deletions, time.Since(began)), nil
			case e := <-w.ResultChan():
				slice, ok := e.Object.(*resourceapi.ResourceSlice)
				if !ok {
					s.Fatalf("the watch ended: %v", e.Object)
				}
				first := slice.Spec.Devices[0].Name
				if at := deleted[first]; e.Type == watch.Deleted {
					deleted[first] = time.Now()
				} else if !at.IsZero() && e.Type == watch.Added {
					delete(deleted, first)
					missing, back = append(missing, time.Since(at)), back+1
				}
			case <-time.After(startLimit):
				s.Fatalf("%d slices are missing after %v", len(deleted), startLimit)
			}
		}
		all = append(all, time.Since(began))
		w.Stop()
		creations = append(creations, s.copies(list.Items))
	}
	s.times(fmt.Sprintf("one of %d slices, deleted to slice at a watcher", len(missing)/len(all)), missing)
	s.times("all these slices, first deletion to last slice", all)
	s.times("floor: all these slices deleted", deletions)
	s.times("floor: all these slices created by this test", creations)
}

// copies creates the slices for another driver, deletes them again, and returns how long their creation took.
func (s *story) copies(all []resourceapi.ResourceSlice) time.Duration {
	s.Helper()
	api := s.cluster.Client.ResourceV1().ResourceSlices()
	began := time.Now()
	for i := range all {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "copy-"}, Spec: *all[i].Spec.DeepCopy()}
		slice.Spec.Driver, slice.Spec.Pool.Name = "copy.metalplug.io", "copy"
		_, err := api.Create(s.Context(), slice, metav1.CreateOptions{})
		s.must(err)
	}
	took := time.Since(began)
	s.must(api.DeleteCollection(s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.driver=copy.metalplug.io"}))
	return took
}

// prepareSpeed measures the kubelet's request for a claim. The floors are a request without a claim, and reading a claim.
func (s *story) prepareSpeed(node *Node) {
	s.Helper()
	c, err := grpc.NewClient("unix://"+node.path("var/lib/kubelet/plugins/metalplug.io/dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	defer c.Close()
	kubelet, api := drapb.NewDRAPluginClient(c), s.cluster.Client.ResourceV1().ResourceClaims(space)
	timed := func(do func() error) time.Duration {
		began := time.Now()
		s.must(do())
		return time.Since(began)
	}
	var first, again, empty, read []time.Duration
	for i := range *speed {
		claim := s.createClaim(s.label(fmt.Sprintf("-%d", i)), node.Name)
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: "metalplug.io", Pool: node.Name, Device: strings.ToLower(widgetID(0))}},
		}}
		claim, err := api.UpdateStatus(s.Context(), claim, metav1.UpdateOptions{})
		s.must(err)
		one := []*drapb.Claim{{Namespace: space, Name: claim.Name, Uid: string(claim.UID)}}
		prepare := func() error {
			answer, err := kubelet.NodePrepareResources(s.Context(), &drapb.NodePrepareResourcesRequest{Claims: one})
			if err == nil && len(answer.Claims[one[0].Uid].GetDevices()) != 1 {
				err = fmt.Errorf("prepared: %v", answer)
			}
			return err
		}
		empty = append(empty, timed(func() error {
			_, err := kubelet.NodeUnprepareResources(s.Context(), &drapb.NodeUnprepareResourcesRequest{})
			return err
		}))
		read = append(read, timed(func() error {
			_, err := api.Get(s.Context(), claim.Name, metav1.GetOptions{})
			return err
		}))
		first, again = append(first, timed(prepare)), append(again, timed(prepare))
		_, err = kubelet.NodeUnprepareResources(s.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: one})
		s.must(err)
		s.must(api.Delete(s.Context(), claim.Name, metav1.DeleteOptions{}))
	}
	s.times("a claim prepared, without a reset", first)
	s.times("the same claim prepared again", again)
	s.times("floor: a claim read by this test", read)
	s.times("floor: a request without a claim", empty)
}

// podSpeed measures from the creation of a pod until it runs, with a claim that exists and with a template of a claim. The floors are
// a pod without a device, and pods whose claims belong to the driver of Kubernetes' own tests. The difference between the floors is
// the time of Kubernetes.
func (s *story) podSpeed(node *Node) {
	s.Helper()
	w, err := s.cluster.Client.CoreV1().Pods(space).Watch(s.Context(), metav1.ListOptions{})
	s.must(err)
	defer w.Stop()
	driver, err := node.startUpstream()
	s.must(err)
	defer driver.kill()
	s.createClassFor(fmt.Sprintf("device.driver == %q", upstream), upstream, "")
	kinds := []struct {
		name, class string
		template    bool
	}{
		{name: "a pod with a claim runs", class: node.Name},
		{name: "floor: with a claim of Kubernetes' test driver", class: upstream},
		{name: "a pod with a template of a claim runs", class: node.Name, template: true},
		{name: "floor: with a template, Kubernetes' test driver", class: upstream, template: true},
		{name: "floor: a pod without a device runs"},
	}
	claims := make(map[string]string) // from a class to a claim that all pods use
	for _, class := range []string{node.Name, upstream} {
		claims[class] = s.createClaim(s.label("-"+class), class).Name
	}
	times := make([][]time.Duration, len(kinds))
	for i := range len(kinds) * *speed {
		k := i % len(kinds)
		kind, p := kinds[k], pod(node, s.label(fmt.Sprintf("-%d", i)), 0)
		if kind.class != "" {
			p = claiming(node, p.Name)
			p.Spec.ResourceClaims[0].ResourceClaimTemplateName = &kind.class
		}
		if name := claims[kind.class]; name != "" && !kind.template {
			p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "device", ResourceClaimName: &name}
		}
		times[k] = append(times[k], seen(s, w, func() { s.create(p) }, func(now *corev1.Pod) bool {
			return now.Name == p.Name && now.Status.Phase == corev1.PodRunning
		}))
		s.remove(p.Name)
	}
	for k, kind := range kinds {
		s.times(kind.name, times[k])
	}
	for _, name := range claims {
		s.must(s.cluster.Client.ResourceV1().ResourceClaims(space).Delete(s.Context(), name, metav1.DeleteOptions{}))
	}
}

// createClaim creates a claim for one device of a class.
func (s *story) createClaim(name, class string) *resourceapi.ResourceClaim {
	s.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}
	claim, err := s.cluster.Client.ResourceV1().ResourceClaims(space).Create(s.Context(), claim, metav1.CreateOptions{})
	s.must(err)
	return claim
}

// counter returns the sum of a number in the status files of a process and its threads. For memory it reads only the process.
func counter(s *story, p *process, name string) (sum int) {
	s.Helper()
	files := []string{fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)}
	if strings.HasSuffix(name, "switches") {
		files, _ = filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.cmd.Process.Pid)) // the pattern is well formed
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		s.must(err)
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, name+":"); ok {
				n, err := strconv.Atoi(strings.Fields(value)[0])
				s.must(err)
				sum += n
			}
		}
	}
	return sum
}
