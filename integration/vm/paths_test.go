//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// twoWays is a drive with two controllers.
var twoWays = vm.Drive{Serial: "TWOWAYS", Namespaces: 1, Controllers: 2}

// TestPaths tests a namespace with two controllers. Both controllers must lead to one device.
func TestPaths(t *testing.T) {
	s := begin(t, hardwareConfig, vm.Options{Drives: []vm.Drive{twoWays}})
	if !s.m.Step(t, "offered once", func(t *testing.T) { offeredOnce(s, t) }) {
		return
	}
	s.m.Step(t, "one way goes", func(t *testing.T) { oneWayGoes(s, t) })
	s.m.Step(t, "the other goes", func(t *testing.T) { otherWayGoes(s, t) })
}

// offeredOnce checks that the two paths are hidden nodes, and that a container gets the node above them.
func offeredOnce(s *story, t *testing.T) {
	s.m.StartDaemon()
	s.await(t, nvme, 1)
	if ways := strings.Fields(s.m.Sh("ls -d /sys/class/nvme/nvme*/nvme*c*n1 | xargs -n 1 basename")); len(ways) != 2 {
		t.Fatalf("the drive has the ways %v", ways)
	}
	s.startTwoWays(t, "with-both")
}

// oneWayGoes checks that a pod does not notice the loss of one path.
func oneWayGoes(s *story, t *testing.T) {
	from, before := s.kubelet.Mark(), s.healthy(nvme)
	mark := s.udev.Mark()
	s.m.Unplug(vm.Drive{Serial: twoWays.Serial + "-2", Namespaces: 1})
	s.m.Eventually("udev to tell of the controller", patience, func() bool {
		return strings.Contains(s.udev.Text(mark), "remove") && strings.Contains(s.udev.Text(mark), "(nvme)")
	})
	s.m.Run("udevadm", "settle")
	s.onlyAllocatable(t, from, nvme, 1)
	if after := s.healthy(nvme); !slices.Equal(before, after) {
		t.Errorf("the device was %v and is %v", before, after)
	}
	s.startTwoWays(t, "with-one")
}

// startTwoWays starts a pod with the drive and ends the pod. Then metalplugd reads the drive and offers it again.
func (s *story) startTwoWays(t *testing.T, uid string) {
	t.Helper()
	pod := one(uid)
	if nodes, want := s.run(pod), s.m.Namespaces()[twoWays.Serial]; !slices.Equal(nodes, []string{want}) {
		t.Errorf("the pod gets %v instead of %s", nodes, want)
	}
	s.endPod(t, pod)
	s.await(t, nvme, 1)
}

func otherWayGoes(s *story, t *testing.T) {
	from := s.kubelet.Mark()
	s.m.Unplug(vm.Drive{Serial: twoWays.Serial, Namespaces: 1})
	if _, err := s.kubelet.AwaitAllocatable(from, nvme, 0, patience); err != nil {
		t.Error(err)
	}
}
