//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

// kubeletAway checks that a restarted kubelet gets all devices in their current state.
func kubeletAway(s *story, t *testing.T) {
	s.await(t, nvme, atRest)
	s.kubelet.Stop()
	node := s.plugUnseen(t, plugged[0])
	s.because(t, node, "") // waits until metalplugd has found the drive blank
	s.kubelet = s.m.StartKubelet()
	seen, err := s.kubelet.AwaitAllocatable(0, nvme, atRest+1, patience)
	if err != nil {
		t.Error(err)
	} else {
		s.note("kubelet starts again", "kubelet.sock to capacity", seen.Sub(s.kubelet.Listening()))
	}
	s.onlyAllOrNone(t, 0, time.Time{}, nvme, vm.Counts{}, atRest+1)
	s.expect(t, change{
		name: "unplug after that", act: func() { s.m.Unplug(plugged[0]) }, resource: nvme, by: -1,
		action: "remove", device: always(node),
	})
}

// plugUnseen plugs in a drive while the daemon or the kubelet does not run, and returns its namespace after udevd has
// processed it.
func (s *story) plugUnseen(t *testing.T, d vm.Drive) string {
	t.Helper()
	from := s.udev.Mark()
	s.m.Plug(d)
	s.udev.Block(from, "add")
	return path.Base(s.m.Namespaces()[d.Serial])
}

// daemonAway checks that the daemon notices, at its start, changes that happened while it did not run.
func daemonAway(s *story, t *testing.T) {
	before := s.await(t, nvme, atRest)
	s.m.StopDaemon()
	s.plugUnseen(t, plugged[1])
	mark := s.kubelet.Mark()
	s.m.StartDaemon()
	if _, err := s.kubelet.AwaitAllocatable(mark, nvme, int64(len(before)+1), patience); err != nil {
		t.Error(err)
	}
	s.m.StopDaemon()
	from := s.udev.Mark()
	s.m.Unplug(plugged[1])
	s.udev.Block(from, "remove")
	mark = s.kubelet.Mark()
	s.m.StartDaemon()
	if _, err := s.kubelet.AwaitAllocatable(mark, nvme, int64(len(before)), patience); err != nil {
		t.Error(err)
	}
	if after := s.healthy(nvme); !slices.Equal(before, after) {
		t.Errorf("healthy devices were %v and are %v", before, after)
	}
}

// reboot checks that the IDs that pods hold do not change during a boot, although the drives are then in other slots and
// have other kernel names.
func reboot(s *story, t *testing.T) {
	s.m.Plug(plugged[0], plugged[1])
	before := s.await(t, nvme, atRest+2)
	s.m.Unplug(plugged[0], plugged[1])
	s.await(t, nvme, atRest)
	s.m.Plug(plugged[1], plugged[0])
	if moved := s.await(t, nvme, atRest+2); !slices.Equal(before, moved) {
		t.Errorf("in other slots, healthy devices were %v and are %v", before, moved)
	}
	s.m.Reboot()
	s.watch()
	s.m.StartDaemon()
	s.kubelet = s.m.StartKubelet()
	if after := s.await(t, nvme, atRest+2); !slices.Equal(before, after) {
		t.Errorf("after a reboot, healthy devices were %v and are %v", before, after)
	}
}

// await waits until the given number of devices of a resource is allocatable, and returns their IDs.
func (s *story) await(t *testing.T, resource string, want int64) []string {
	t.Helper()
	mark := s.kubelet.Mark()
	if s.allocatable(resource) != want {
		if _, err := s.kubelet.AwaitAllocatable(mark, resource, want, patience); err != nil {
			t.Fatal(err)
		}
	}
	return s.healthy(resource)
}

// restart checks that the IDs that pods hold do not change when the daemon restarts.
func restart(s *story, t *testing.T) {
	s.m.Plug(plugged...)
	defer func() {
		s.m.Unplug(plugged...)
		s.await(t, nvme, atRest)
	}()
	want := int64(len(plugged)) + atRest
	before, mark, began := s.await(t, nvme, want), s.kubelet.Mark(), s.now(t)
	_, cursor := s.journal("")
	s.m.Run("systemctl", "restart", "metalplugd")
	lost, err := s.kubelet.AwaitAllocatable(mark, nvme, 0, patience)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := s.kubelet.AwaitAllocatableSince(lost, mark, nvme, want, patience)
	if err != nil {
		t.Fatal(err)
	}
	if log, _ := s.journal(cursor); strings.Contains(log, "device list incomplete at start") || strings.Contains(log, "no answer") {
		s.onlyMore(t, mark, nvme, lost)
	} else {
		s.onlyAllOrNone(t, mark, lost, nvme, vm.Counts{Capacity: want}, want)
	}
	s.note("metalplugd restarts", "systemctl restart to capacity", seen.Sub(began))
	s.note("metalplugd restarts", "devices away from the kubelet", seen.Sub(lost))
	if after := s.healthy(nvme); !slices.Equal(before, after) {
		t.Errorf("healthy devices were %v and are %v", before, after)
	}
}

// onlyMore fails if the number of devices that the device manager received decreased after a given time. Callers use it if
// the log shows that the daemon could not read all devices in time. This happens with seven drives at once on a busy
// emulated CPU.
func (s *story) onlyMore(t *testing.T, from int, resource string, after time.Time) {
	t.Helper()
	seen := s.kubelet.AllocatablesSince(after, from, resource)
	if !slices.IsSorted(seen) {
		t.Errorf("allocatable %s went %v", resource, seen)
	}
}

// onlyAllOrNone fails if, after a given time, the device manager counted only some devices of a resource, or none while the
// plugin was connected. The plugin's first message must be complete. away is the count before that message: the capacity if
// the device manager had a list before, and nothing for a new kubelet.
func (s *story) onlyAllOrNone(t *testing.T, from int, since time.Time, resource string, away vm.Counts, all int64) {
	t.Helper()
	seen := s.kubelet.CountsSince(since, from, resource)
	rest := seen
	for len(rest) > 0 && rest[0] == away {
		rest = rest[1:]
	}
	for _, c := range rest {
		if c != (vm.Counts{Capacity: all, Allocatable: all}) {
			t.Errorf("%s went %v instead of from %v to all %d", resource, seen, away, all)
			return
		}
	}
}
