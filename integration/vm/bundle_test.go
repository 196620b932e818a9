//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// pair is the resource of bundles of a fast drive and a large one below one PCIe switch. Each is erased by its own rule.
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

// atSwitches are drives of two kinds below two switches. Those with one number are not together.
var atSwitches = []vm.Drive{
	{Serial: "FAST1", Slot: "switch1-1"},
	{Serial: "LARGE2", Slot: "switch1-2"},
	{Serial: "FAST2", Slot: "switch2-1"},
	{Serial: "LARGE1", Slot: "switch2-2"},
}

// together are the drives below one switch.
var together = map[string]string{"FAST1": "LARGE2", "FAST2": "LARGE1"}

// TestBundles is about devices that are made of two drives below one PCIe switch.
func TestBundles(t *testing.T) {
	s := begin(t, bundleConfig, vm.Options{Switches: 2, Slots: 1})
	for _, one := range []act{
		{"drives below a switch are a bundle", madeOfNeighbours},
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
