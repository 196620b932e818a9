//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

// patience is how long a change may take in an emulated machine. It is no budget. The table that the test prints has
// those.
const patience = 3 * time.Minute

// slow is what the log shows all events of.
const slow = 400 * time.Millisecond

// story is a machine in which metalplugd and a kubelet's device manager run,
// and what was measured there.
type story struct {
	m       *vm.Machine
	udev    *vm.Udev // the witness
	beside  *vm.Udev // what any process could know at best, in this machine
	kubelet *vm.Kubelet
	table   []latency
}

// latency is one row of the table. It says how long after an event the device manager had it.
type latency struct {
	step, event string
	took        time.Duration
	// floor is how long after it a process that does nothing else had the event, or 0 where there is no event.
	floor time.Duration
}

// begin boots a machine and starts all in it. The kubelet comes first, as on a node where metalplug is installed later.
func begin(t *testing.T, config string, o vm.Options) *story {
	s := &story{m: vm.Boot(t, o)}
	s.m.InstallDaemon(config)
	s.watch()
	s.kubelet = s.m.StartKubelet()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("metalplugd:\n%s", s.m.Journal("metalplugd", "300"))
		}
		t.Logf("event to capacity, in an emulated machine:\n%s", s)
	})
	return s
}

func (s *story) watch() { s.udev, s.beside = s.m.WatchUdev(), s.m.WatchUdevBeside() }

// String is the table.
func (s *story) String() string {
	var b strings.Builder
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Fprintf(&b, "%-24s %-30s %10s %10s\n", "step", "from", "ms", "floor")
	for _, l := range s.table {
		fmt.Fprintf(&b, "%-24s %-30s %10.1f", l.step, l.event, ms(l.took))
		if l.floor != 0 {
			fmt.Fprintf(&b, " %10.1f", ms(l.floor))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// note adds a row for what no uevent tells of.
func (s *story) note(step, from string, took time.Duration) {
	s.table = append(s.table, latency{step: step, event: from, took: took})
}

// allocatable is how many devices of a resource the node has for pods now.
func (s *story) allocatable(resource string) int64 {
	return s.kubelet.Capacity()[resource].Allocatable
}

// change is one thing that happens to the hardware and what is to come of it.
type change struct {
	name     string
	act      func()
	resource string
	by       int64 // of its allocatable devices
	// action and device are those of the udev event that reports it. device is called after the change has been seen.
	action string
	device func() string
}

// expect makes a change, waits until the device manager has it, and measures
// from the udev event. Between before and after it must have seen nothing else.
func (s *story) expect(t *testing.T, c change) {
	t.Helper()
	before := s.allocatable(c.resource)
	fromUdev, fromKubelet := s.udev.Mark(), s.kubelet.Mark()
	c.act()
	seen, err := s.kubelet.AwaitAllocatable(fromKubelet, c.resource, before+c.by, patience)
	if err != nil {
		t.Fatalf("%s: %v\nudev:\n%s", c.name, err, s.udev.Text(fromUdev))
	}
	device := c.device()
	event := s.udev.Event(fromUdev, c.action, device, seen)
	took := seen.Sub(event.Time)
	same := s.beside.Nth(c.action, device, s.udev.Count(c.action, device, event))
	floor := max(same.Time.Sub(event.Time), time.Microsecond)
	s.table = append(s.table, latency{c.name, c.action + " " + device, took, floor})
	if took > slow {
		t.Logf("%s took %v, until uptime %v; udev:\n%s", c.name, took, event.Uptime+took, s.udev.Text(fromUdev))
	}
	s.noDetour(t, fromKubelet, c, before)
}

// noDetour fails if the count left the straight line from before to after. A device was offered for a moment then, or
// missing for one.
func (s *story) noDetour(t *testing.T, from int, c change, before int64) {
	t.Helper()
	last := before
	for _, n := range s.kubelet.Allocatables(from, c.resource) {
		if (n-last)*c.by < 0 || (n-before-c.by)*c.by > 0 {
			t.Errorf("%s: allocatable went %v from %d", c.name, s.kubelet.Allocatables(from, c.resource), before)
			return
		}
		last = n
	}
}

// healthy are the IDs of a resource's healthy devices, in order.
func (s *story) healthy(resource string) []string {
	ids := s.kubelet.Healthy(resource)
	slices.Sort(ids)
	return ids
}

// gets starts a pod with one device of a resource, and checks that it gets the
// nodes.
func (s *story) gets(t *testing.T, resource string, want ...string) {
	t.Helper()
	pod := vm.Pod{UID: strings.NewReplacer("/", "-", ".", "-").Replace(resource), Limits: map[string]int64{resource: 1}}
	nodes := s.run(pod)
	defer s.kubelet.RemovePod(pod)
	slices.Sort(nodes)
	if !slices.Equal(nodes, want) {
		t.Errorf("a pod with %s gets %v instead of %v", resource, nodes, want)
	}
}

// ends removes a pod, and returns when the daemon knows that no pod holds a device any more. The disks among them are
// read then, and offered again.
func (s *story) ends(t *testing.T, pod vm.Pod) {
	t.Helper()
	s.kubelet.RemovePod(pod)
	s.m.Eventually("the devices to be free", patience, func() bool {
		return !slices.ContainsFunc(s.list(t), func(d shown) bool { return d.Held })
	})
}

// run starts a pod and returns the device nodes that it gets, as the kernel
// names them.
func (s *story) run(pod vm.Pod) []string {
	nodes, _ := s.kubelet.RunPod(pod)
	for i, n := range nodes {
		nodes[i] = s.m.Run("readlink", "-f", n)
	}
	return nodes
}

// always is a device whose name is known before the change.
func always(name string) func() string { return func() string { return name } }
