// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	widget = corev1.ResourceName("example.org/widget")
	space  = "default"
	// environment is the variable with the IDs of a container's widgets.
	environment = "METALPLUG_EXAMPLE_ORG_WIDGET"
)

// resources configures the widgets of a node.
const resources = `
[[resource]]
name  = "example.org/widget"
class = "node"
match = { SUBSYSTEM = "widget" }
`

// shared is the control plane of all stories. Each story starts its own nodes.
var shared *Cluster

// told lists the stories that have run, each with its duration.
var told []string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	began := time.Now()
	before, err := takeTraces()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	shared, err = Start(context.Background(), programs())
	if err != nil {
		fmt.Printf("start the cluster: %v\n", err)
		return 1
	}
	fmt.Printf("control plane of %s ready after %.1f s\n", release(), time.Since(began).Seconds())
	code := m.Run()
	fmt.Printf("\n%s", strings.Join(told, ""))
	if len(told) == 0 {
		fmt.Println("no story ran: look for its name in the tests")
		code = 1
	}
	dir := shared.options.Dir
	if err := shared.Stop(); err != nil {
		fmt.Printf("stop the cluster: %v\n", err)
		code = 1
	}
	if err := before.compare(dir); err != nil {
		fmt.Printf("left over: %v\n", err)
		code = 1
	}
	return code
}

// programs returns the programs that "make cluster" builds, with a new directory for each run.
func programs() Options {
	return Options{
		Dir:      filepath.Join(os.TempDir(), fmt.Sprintf("mpc%d", os.Getpid())),
		Programs: filepath.Join("..", "..", "bin"),
		Release:  release(),
	}
}

// release returns the Kubernetes release from the environment of "make cluster".
func release() string {
	if r := os.Getenv("RELEASE"); r != "" {
		return r
	}
	return "v1.36"
}

// story is one test that logs its steps with the time.
type story struct {
	*testing.T
	cluster *Cluster // the shared cluster, except in the story of an upgrade
	title   string
	began   time.Time
	last    time.Time
}

// tell starts a story. TestMain prints a table of the stories and their durations.
func tell(t *testing.T, title string) *story {
	t.Helper()
	s := &story{T: t, cluster: shared, title: title, began: time.Now(), last: time.Now()}
	t.Cleanup(func() {
		outcome := "ok  "
		if t.Failed() {
			outcome = "FAIL"
		}
		told = append(told, fmt.Sprintf("%s %6.2f s  %s\n", outcome, time.Since(s.began).Seconds(), title))
	})
	return s
}

// step logs an event with the time since the last step.
func (s *story) step(format string, args ...any) {
	s.Helper()
	s.Logf("%6.2f s  %s", time.Since(s.last).Seconds(), fmt.Sprintf(format, args...))
	s.last = time.Now()
}

func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// node starts a node with widgets 0 to n-1 and waits until the API server shows the widgets. The end of the story removes
// the node and its pods.
func (s *story) node(n int) *Node {
	return s.nodeOf(NodeOptions{Name: s.label(""), Recording: widgets(n)}, n)
}

// nodeOf is like node, with other options.
func (s *story) nodeOf(o NodeOptions, n int) *Node {
	s.Helper()
	node := s.start(o)
	s.allocatable(node, n)
	s.step("node %s is Ready with %d widgets", o.Name, n)
	return node
}

// start is like nodeOf, but does not wait for the widgets.
func (s *story) start(o NodeOptions) *Node {
	s.Helper()
	if o.Resources == "" {
		o.Resources = resources
	}
	s.Cleanup(func() { // runs when the pods are gone
		if i := slices.IndexFunc(s.cluster.nodes, func(n *Node) bool { return n.Name == o.Name }); i >= 0 {
			if node := s.cluster.nodes[i]; s.Failed() {
				out, err := node.Ctl(context.WithoutCancel(s.Context()), "list", "--all")
				s.Logf("metalplugctl list --all: %v\n%s\nlast lines of the logs:\n%s", err, out, node.tails("metalplugd", "kubelet", "cri"))
			}
			if err := s.cluster.nodes[i].Stop(); err != nil {
				s.Error(err)
			}
		}
	})
	node, err := s.cluster.StartNode(s.Context(), o)
	s.must(err)
	return node
}

// label returns a name that no other story uses.
func (s *story) label(more string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.Name(), "Test")), "/", "-") + more
}

// tails returns the last lines of logs.
func (n *Node) tails(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(n.path(name + ".log"))
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "%s:\n\t%s\n", name, strings.Join(lines[max(0, len(lines)-25):], "\n\t"))
	}
	return b.String()
}

// await waits until try returns nil. A failure shows the last error.
func (s *story) await(what string, try func(context.Context) error) {
	s.Helper()
	s.must(poll(s.Context(), what, try))
}

// allocatable waits until the API server shows this number of allocatable widgets.
func (s *story) allocatable(n *Node, want int) {
	s.Helper()
	s.offers(n, widget, want)
}

// offers is like allocatable for any resource.
func (s *story) offers(n *Node, resource corev1.ResourceName, want int) {
	s.Helper()
	s.await(fmt.Sprintf("%s has no %d %s", n.Name, want, resource), func(ctx context.Context) error {
		node, err := s.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		quantity, there := node.Status.Allocatable[resource]
		if got := int(quantity.Value()); got != want || !there {
			return fmt.Errorf("allocatable is %d", got)
		}
		return nil
	})
}

// create creates a pod. The end of the story deletes the pod and waits until it is gone.
func (s *story) create(pod *corev1.Pod) {
	s.Helper()
	s.await("create pod "+pod.Name, func(ctx context.Context) error { // the API server refuses the pod until the service account exists
		_, err := s.cluster.Client.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	s.Cleanup(func() { s.remove(pod.Name) })
}

// remove deletes a pod and waits until it is gone.
func (s *story) remove(name string) {
	s.Helper()
	ctx := context.WithoutCancel(s.Context()) // a cleanup may call this function
	if err := poll(ctx, "pod "+name+" stays", func(ctx context.Context) error {
		err := s.cluster.Client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{})
		if isGone(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	}); err != nil {
		s.Error(err)
	}
}

// get returns a pod.
func (s *story) get(name string) *corev1.Pod {
	s.Helper()
	pod, err := s.cluster.Client.CoreV1().Pods(space).Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	return pod
}

// phase waits until a pod is in this phase. For Running, it also waits until all containers are ready.
func (s *story) phase(name string, want corev1.PodPhase) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	s.await(fmt.Sprintf("pod %s is not %s", name, want), func(ctx context.Context) error {
		var err error
		if pod, err = s.cluster.Client.CoreV1().Pods(space).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		ready := want != corev1.PodRunning
		for _, c := range pod.Status.Conditions {
			ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		if pod.Status.Phase != want || !ready {
			return fmt.Errorf("it is %s: %s %s; %v", pod.Status.Phase, pod.Status.Reason, pod.Status.Message, pod.Status.Conditions)
		}
		return nil
	})
	return pod
}

// exists returns an error if the pod does not exist.
func (s *story) exists(name string) error {
	_, err := s.cluster.Client.CoreV1().Pods(space).Get(s.Context(), name, metav1.GetOptions{})
	return err
}

// running waits until one of these pods runs, and checks that the others do not run.
func (s *story) running(names map[string]bool) string {
	s.Helper()
	var found []string
	s.await("no pod runs", func(ctx context.Context) error {
		found = nil
		pods, err := s.cluster.Client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if names[p.Name] && p.Status.Phase == corev1.PodFailed {
				return fatal{fmt.Errorf("pod %s failed: %s %s", p.Name, p.Status.Reason, p.Status.Message)}
			}
			if names[p.Name] && p.Status.Phase == corev1.PodRunning {
				found = append(found, p.Name)
			}
		}
		if len(found) == 0 {
			return errors.New("all wait")
		}
		return nil
	})
	if len(found) != 1 {
		s.Fatalf("pods %v run at the same time", found)
	}
	return found[0]
}

// restarted waits until a pod runs in a new container.
func (s *story) restarted(before *corev1.Pod) {
	s.Helper()
	s.await("pod "+before.Name+" was not restarted", func(ctx context.Context) error {
		now := s.phase(before.Name, corev1.PodRunning)
		if now.Status.ContainerStatuses[0].ContainerID == before.Status.ContainerStatuses[0].ContainerID {
			return errors.New("its container is that of before")
		}
		return nil
	})
}

// unschedulable waits until the scheduler reports that no node fits a pod.
func (s *story) unschedulable(name string) {
	s.Helper()
	s.await(fmt.Sprintf("pod %s is not Unschedulable", name), func(ctx context.Context) error {
		pod, err := s.cluster.Client.CoreV1().Pods(space).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable &&
				strings.Contains(c.Message, "Insufficient "+string(widget)) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", pod.Status.Conditions)
	})
}

// container is the first line of a container's log, with everything that the container got.
type container struct {
	Env     map[string]string
	Devices []struct{ Host, Container, Permissions string }
	CDI     []string
	Spec    *struct {
		Process struct{ Env []string }
		Linux   struct {
			Devices []struct {
				Path         string
				Type         string
				Major, Minor int64
			}
		}
	}
}

// log returns the log of a container.
func (s *story) log(pod, name string) container {
	s.Helper()
	return s.logOf(pod, &corev1.PodLogOptions{Container: name})
}

// logOf is like log, but which selects the container, such as the previous one.
func (s *story) logOf(pod string, which *corev1.PodLogOptions) container {
	s.Helper()
	var c container
	s.await("no log of "+pod, func(ctx context.Context) error {
		text, err := s.cluster.Client.CoreV1().Pods(space).GetLogs(pod, which).DoRaw(ctx)
		if err != nil {
			return err
		}
		return json.NewDecoder(bytes.NewReader(text)).Decode(&c) // ignores the text after the JSON value, which is the output of a program
	})
	return c
}

// widgetsOf returns the sorted IDs of a container's widgets, and compares them with its nodes.
func (s *story) widgetsOf(pod, name string) []string {
	s.Helper()
	c := s.log(pod, name)
	if c.Env[environment] == "" {
		if len(c.Devices) > 0 {
			s.Errorf("%s/%s has devices %v without an ID", pod, name, c.Devices)
		}
		return nil
	}
	ids := strings.Split(c.Env[environment], ",")
	slices.Sort(ids)
	var nodes []string
	for _, d := range c.Devices {
		nodes = append(nodes, d.Container)
	}
	slices.Sort(nodes)
	var want []string
	for _, id := range ids {
		want = append(want, "/dev/widget"+strings.TrimSuffix(strings.TrimPrefix(id, "node-widget-W"), "-widget"))
	}
	slices.Sort(want)
	if !slices.Equal(nodes, want) {
		s.Errorf("%s/%s has the IDs %v and the nodes %v", pod, name, ids, nodes)
	}
	return ids
}
