// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

func grouped(g device.Group, match map[string]string) []device.Rule {
	return []device.Rule{{Resource: "example.com/set", Class: &device.Generic, Group: &g, Match: match}}
}

// If a member is added or removed, the device that represents the group must be inspected.
func TestGroupIsWokenByItsMembers(t *testing.T) {
	rules := append(anyNode(nil), grouped(device.Group{Nodes: []string{"/dev/kvm"}, Optional: []string{"/dev/vhost-*"}}, nil)...)
	for node, want := range map[string]bool{"/dev/kvm": true, "/dev/vhost-net": true, "/dev/fuse": false, "": false} {
		if got := device.Generic.WokenBy(udev.Device{Subsystem: "misc", DevNode: node}, rules...); got != want {
			t.Errorf("%q wakes it: %t", node, got)
		}
	}
	if device.GPU.WokenBy(udev.Device{Subsystem: "misc", DevNode: "/dev/kvm"}, rules...) {
		t.Error("a member of a group wakes class gpu")
	}
}

// With any hardware and overlapping rules, no node is offered twice. The inspection of each member has the same result.
func TestGroupsShareNoNode(t *testing.T) {
	rules := []device.Rule{{Resource: "example.com/any", Class: &device.Generic}}
	for i, g := range []device.Group{
		{Nodes: []string{"/dev/video*"}, Optional: []string{"/dev/*"}, By: device.GroupUSB},
		{Nodes: []string{"/dev/*"}, By: device.GroupPCI},
		{Nodes: []string{"/dev/kvm", "/dev/*"}},
		{Nodes: []string{"/dev/*"}, By: device.GroupUSB},
	} {
		rules = append(rules, device.Rule{Resource: fmt.Sprintf("example.com/%d", i), Class: &device.Generic, Group: &g})
	}
	for name, text := range recordings(t) {
		h, devices := machine(t, text)
		by := make(map[string]string)
		for _, s := range inspectAll(h, rules, devices) {
			checkSighting(t, name, s)
			for _, n := range s.Allocation.Nodes {
				if n.Container == "/dev/vfio/vfio" || n.Container == "/dev/iommu" {
					continue // a node that all VFIO groups need
				}
				if other := by[n.Container]; other != "" {
					t.Errorf("%s: %s is offered as %s and as %s", name, n.Container, other, s.Device.ID)
				}
				by[n.Container] = s.Device.ID
			}
		}
	}
}
