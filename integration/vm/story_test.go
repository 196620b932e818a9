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

// patience is the maximum duration of a change in an emulated machine. It is not a budget. The budgets are in the table that
// the test prints.
const patience = 3 * time.Minute

// slow is the latency above which the log shows all events.
const slow = 400 * time.Millisecond

// story is a machine with metalplugd and the kubelet's device manager. It also has the measurements.
type story struct {
	m       *vm.Machine
	udev    *vm.Udev // the first listener
	beside  *vm.Udev // a second listener, which shows the shortest possible time for a process in this machine
	kubelet *vm.Kubelet
	table   []latency
}

// latency is one row of the table. It has the time from an event until the device manager knew about the change.
type latency struct {
	step, event string
	took        time.Duration
	// floor is the time from the event until a minimal process had received it, or 0 if there is no event.
	floor time.Duration
}

// begin boots a machine and starts everything in it. The kubelet starts first, as on a node where metalplug is
// installed later.
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

// String returns the table.
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

// note adds a row for a change that causes no uevent.
func (s *story) note(step, from string, took time.Duration) {
	s.table = append(s.table, latency{step: step, event: from, took: took})
}

// allocatable returns the node's current number of allocatable devices of a resource.
func (s *story) allocatable(resource string) int64 {
	return s.kubelet.Capacity()[resource].Allocatable
}

// change is a hardware change with its expected effect.
type change struct {
	name     string
	act      func()
	resource string
	by       int64 // change in the number of allocatable devices
	// action and device identify the udev event that reports the change. device is called after the device manager has
	// noticed the change.
	action string
	device func() string
}

// expect makes a change, waits until the device manager knows about it, and measures the time since the udev event. In
// between, the device manager must not see any other number.
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

// noDetour fails if the count did not change monotonically. A device was then offered or missing for a moment.
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

// healthy returns the sorted IDs of a resource's healthy devices.
func (s *story) healthy(resource string) []string {
	ids := s.kubelet.Healthy(resource)
	slices.Sort(ids)
	return ids
}

// startPod starts a pod with one device of a resource, and checks its nodes.
func (s *story) startPod(t *testing.T, resource string, want ...string) {
	t.Helper()
	pod := vm.Pod{UID: strings.NewReplacer("/", "-", ".", "-").Replace(resource), Limits: map[string]int64{resource: 1}}
	nodes := s.run(pod)
	defer s.kubelet.RemovePod(pod)
	slices.Sort(nodes)
	if !slices.Equal(nodes, want) {
		t.Errorf("a pod with %s gets %v instead of %v", resource, nodes, want)
	}
}

// endPod removes a pod, and returns when the daemon knows that no pod holds a device. The daemon then reads the disks of the
// pod and offers them again.
func (s *story) endPod(t *testing.T, pod vm.Pod) {
	t.Helper()
	s.kubelet.RemovePod(pod)
	s.m.Eventually("the devices to be free", patience, func() bool {
		return !slices.ContainsFunc(s.list(t), func(d shown) bool { return d.Held })
	})
}

// run starts a pod and returns the kernel's names of its device nodes.
func (s *story) run(pod vm.Pod) []string {
	nodes, _ := s.kubelet.RunPod(pod)
	for i, n := range nodes {
		nodes[i] = s.m.Run("readlink", "-f", n)
	}
	return nodes
}

// always returns a function for [change].device that always returns name.
func always(name string) func() string { return func() string { return name } }
