//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// pair is the resource of bundles of a fast and a large drive below one PCIe switch. The rules of its own resource apply to
// the erasure of each drive.
const (
	pair         = "example.org/pair"
	bundleConfig = `
builtin = false
[reset]
socket = "direct"

[[resource]]
name = "example.org/fast"
class = "nvme"
match = { ID_SERIAL_SHORT = "FAST*" }
[resource.reset]
scrub = "zero"
when = "both"
timeout = "2m"

[[resource]]
name = "example.org/large"
class = "nvme"
match = { ID_SERIAL_SHORT = "LARGE*" }
[resource.reset]
scrub = "discard"
when = "both"
timeout = "2m"

[[resource]]
name = "example.org/pair"
class = "bundle"
members = ["example.org/fast", "example.org/large"]
near = "switch"
`
)

// atSwitches has drives of two kinds below two switches. Drives with the same number are below different switches.
var atSwitches = []vm.Drive{
	{Serial: "FAST1", Slot: "switch1-1"},
	{Serial: "LARGE2", Slot: "switch1-2"},
	{Serial: "FAST2", Slot: "switch2-1"},
	{Serial: "LARGE1", Slot: "switch2-2"},
}

// together maps each fast drive to the large drive below the same switch.
var together = map[string]string{"FAST1": "LARGE2", "FAST2": "LARGE1"}

// TestBundles tests bundles of two drives below one PCIe switch.
func TestBundles(t *testing.T) {
	s := begin(t, bundleConfig, vm.Options{Switches: 2, Slots: 1, Unhurried: true})
	for _, one := range []struct {
		name string
		run  func(*story, *testing.T)
	}{
		{"drives below a switch are a bundle", madeOfNeighbours},
		{"a container starts with both drives, and both are erased after it", pairErased},
		{"a drive that goes takes its bundle along until it is back", pairBroken},
		{"the machine reboots", pairReboots},
	} {
		if !s.m.Step(t, one.name, func(t *testing.T) { one.run(s, t) }) {
			return
		}
	}
}

func madeOfNeighbours(s *story, t *testing.T) {
	s.m.StartDaemon()
	s.m.Plug(atSwitches...)
	s.await(t, pair, 2)
	tree := s.m.Run("metalplugctl", "topology")
	for fast, large := range together {
		bundleOf := func(serial string) string {
			for line := range strings.Lines(s.m.Run("metalplugctl", "why", serial)) {
				if _, id, ok := strings.Cut(line, "offered as "+pair+" in "); ok {
					id, _, _ = strings.Cut(id, ",")
					return id
				}
			}
			return ""
		}
		if one, other := bundleOf(fast), bundleOf(large); one == "" || one != other {
			t.Errorf("%s is in %q and %s in %q:\n%s", fast, one, large, other, tree)
		}
	}
	for _, resource := range []string{"example.org/fast", "example.org/large"} {
		if n := s.allocatable(resource); n != 0 {
			t.Errorf("%d devices of %s are offered on their own", n, resource)
		}
	}
}

// pairPod is a pod with one bundle.
var pairPod = vm.Pod{UID: "trains", Limits: map[string]int64{pair: 1}}

// waitOffered waits for this number of bundles. It waits long enough for two erasures, which take minutes in an emulated
// machine.
func (s *story) waitOffered(bundles int64) {
	s.m.Eventually("the bundles to be offered", patience, func() bool { return s.allocatable(pair) == bundles })
}

func pairErased(s *story, t *testing.T) {
	_, cursor := s.journal("")
	nodes := s.run(pairPod)
	if len(nodes) != 2 {
		t.Fatalf("the container gets %v", nodes)
	}
	first, second := s.serialOf(t, nodes[0]), s.serialOf(t, nodes[1])
	if together[first] != second {
		t.Errorf("the container gets %s and %s", first, second)
	}
	log, _ := s.journal(cursor)
	if n := strings.Count(log, "device reset"); n != 2 {
		t.Errorf("%d drives were reset before the start:\n%s", n, log)
	}
	for _, node := range nodes {
		s.m.Sh("dd if=/dev/urandom of=" + node + " bs=1M count=60 conv=fsync status=none")
	}
	_, cursor = s.journal("")
	from := s.kubelet.Mark()
	s.kubelet.RemovePod(pairPod)
	if _, err := s.kubelet.AwaitAllocatable(from, pair, 1, patience); err != nil {
		t.Errorf("the bundle was not withheld: %v", err)
	}
	s.waitOffered(2)
	log, _ = s.journal(cursor)
	for _, how := range []string{"discarded 67108864 bytes", "wrote zeroes over 67108864 bytes"} {
		if !strings.Contains(log, how) {
			t.Errorf("the journal does not say %q:\n%s", how, log)
		}
	}
	for _, node := range nodes {
		if r := s.m.Try("cmp", "--bytes", "67108864", node, "/dev/zero"); r.Code != 0 {
			t.Errorf("%s is not zero: %s%s", node, r.Stdout, r.Stderr)
		}
	}
}

func pairBroken(s *story, t *testing.T) {
	before := s.healthy(pair)
	s.m.Unplug(atSwitches[0])
	s.waitOffered(1)
	s.m.Plug(atSwitches[0])
	s.waitOffered(2)
	if after := s.healthy(pair); !slices.Equal(before, after) {
		t.Errorf("the bundles were %v and are %v", before, after)
	}
}

// pairReboots checks that the bundles have the same IDs after a boot, although the drives of one bundle have changed places.
func pairReboots(s *story, t *testing.T) {
	before := s.healthy(pair)
	moved := []vm.Drive{atSwitches[0], atSwitches[1]}
	s.m.Unplug(moved...)
	s.waitOffered(1)
	moved[0].Slot, moved[1].Slot = moved[1].Slot, moved[0].Slot
	s.m.Plug(moved...)
	s.m.Reboot()
	s.watch()
	s.m.StartDaemon()
	s.kubelet = s.m.StartKubelet()
	if after := s.await(t, pair, 2); !slices.Equal(before, after) {
		t.Errorf("after a reboot, the bundles were %v and are %v", before, after)
	}
}
