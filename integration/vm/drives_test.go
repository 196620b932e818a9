//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

func oneByOne(s *story, t *testing.T) {
	nodes := make(map[string]string)
	for _, d := range plugged {
		s.expect(t, change{
			name: "plug " + d.Serial, act: func() { s.m.Plug(d) }, resource: nvme, by: 1,
			action: "add", device: func() string {
				nodes[d.Serial] = path.Base(s.m.Namespaces()[d.Serial])
				return nodes[d.Serial]
			},
		})
	}
	for _, d := range plugged {
		s.expect(t, change{
			name: "unplug " + d.Serial, act: func() { s.m.Unplug(d) }, resource: nvme, by: -1,
			action: "remove", device: always(nodes[d.Serial]),
		})
	}
}

// atOnce measures the time since the last event of the burst.
func atOnce(s *story, t *testing.T) {
	n := int64(len(plugged))
	var last string // the namespace that appeared last
	s.expect(t, change{
		name: fmt.Sprintf("plug %d drives", n), act: func() { s.m.Plug(plugged...) }, resource: nvme, by: n,
		action: "add", device: func() string {
			last = s.last(t, "add")
			return last
		},
	})
	s.expect(t, change{
		name: fmt.Sprintf("unplug %d drives", n), act: func() { s.m.Unplug(plugged...) }, resource: nvme, by: -n,
		action: "remove", device: func() string { return s.last(t, "remove") },
	})
}

// inSoftware removes a drive through sysfs, as an operator does with a drive that hangs. QEMU has no better way to simulate
// a surprise removal.
func inSoftware(s *story, t *testing.T) {
	node := path.Base(s.m.Namespaces()[atBoot.Serial])
	s.expect(t, change{
		name: "echo 1 > remove", resource: nvme, by: -1, action: "remove", device: always(node),
		act: func() { s.m.Sh("echo 1 > /sys/class/block/" + node + "/device/device/remove") },
	})
	s.expect(t, change{
		name: "echo 1 > rescan", resource: nvme, by: 1, action: "add",
		act:    func() { s.m.Sh("echo 1 > /sys/bus/pci/rescan") },
		device: func() string { return path.Base(s.m.Namespaces()[atBoot.Serial]) },
	})
}

// storm sends the events of an administrator's udevadm trigger, which report no change.
func storm(s *story, t *testing.T) {
	from, before := s.kubelet.Mark(), s.kubelet.Capacity()
	s.m.Sh(`for action in change add bind; do
		udevadm trigger --action $action --subsystem-match pci --subsystem-match nvme --subsystem-match block --subsystem-match drm
	done; udevadm settle`)
	// The daemon processes events in order. So when it has processed this event, it has processed all earlier ones too.
	s.expect(t, change{
		name: "plug after a storm", act: func() { s.m.Plug(plugged[0]) }, resource: nvme, by: 1,
		action: "add", device: func() string { return path.Base(s.m.Namespaces()[plugged[0].Serial]) },
	})
	node := path.Base(s.m.Namespaces()[plugged[0].Serial])
	s.expect(t, change{
		name: "unplug after a storm", act: func() { s.m.Unplug(plugged[0]) }, resource: nvme, by: -1,
		action: "remove", device: always(node),
	})
	for resource, counts := range before {
		for _, n := range s.kubelet.Allocatables(from, resource) {
			if n != counts.Allocatable && resource != nvme {
				t.Errorf("allocatable %s went from %d to %d", resource, counts.Allocatable, n)
			}
		}
	}
}

// headsGo removes the namespaces of a drive that the kernel shows as multipath heads.
func headsGo(s *story, t *testing.T) {
	node := path.Base(s.m.Namespaces()[heads.Serial])
	s.expect(t, change{
		name: "unplug 2 namespaces", act: func() { s.m.Unplug(heads) }, resource: nvme, by: -2,
		action: "remove", device: always(node),
	})
}

// inUse checks that a drive leaves the list when the host uses it, and returns when it is blank again.
func inUse(s *story, t *testing.T) {
	node := s.m.Namespaces()[atBoot.Serial]
	for _, use := range []struct{ name, begin, end string }{
		{"mkfs and mount", "LOCK mkfs.ext4 -q NODE; mount NODE /mnt", "umount /mnt"},
		{"partition", "LOCK sh -c 'echo type=linux | sfdisk --quiet --label gpt NODE'", "true"},
		{"LVM", "LOCK pvcreate --quiet NODE", "true"},
		{"LUKS", "echo secret | LOCK cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 NODE -", "true"},
		{"swap", "LOCK mkswap NODE; swapon NODE", "swapoff NODE"},
	} {
		sh := func(script string) func() {
			// udevd inspects a disk when a writer closes it, but misses a close during an inspection. With a lock on the
			// disk, it misses nothing. The lock also keeps the daemon from checking the disk during mkfs, which would fail.
			// After the preceding storm, such checks are frequent.
			replace := strings.NewReplacer("NODE", node, "LOCK", "udevadm lock --device "+node)
			return func() { s.m.Sh(replace.Replace(script)) }
		}
		s.expect(t, change{
			name: use.name, act: sh(use.begin), resource: nvme, by: -1,
			action: "change", device: always(path.Base(node)),
		})
		s.expect(t, change{
			name: use.name + ": undone", act: sh(use.end + "; udevadm settle; LOCK blkdiscard --zeroout NODE; blockdev --rereadpt NODE"),
			resource: nvme, by: 1, action: "change", device: always(path.Base(node)),
		})
	}
}

// mountedUnseen checks that the daemon notices a mount that udevd does not report. udevd is silent because a process has
// locked the disk.
func mountedUnseen(s *story, t *testing.T) {
	node := s.m.Namespaces()[atBoot.Serial]
	lock := s.m.Start("flock", node, "sh", "-c", "echo locked; sleep infinity")
	defer lock.Stop()
	if _, err := lock.Await(0, patience, func(l vm.Line) bool { return l.Text == "locked" }); err != nil {
		t.Fatal(err)
	}
	from, before := s.kubelet.Mark(), s.allocatable(nvme)
	s.m.Run("mkfs.ext4", "-q", node)
	began := s.now(t)
	s.m.Run("mount", node, "/mnt")
	seen, err := s.kubelet.AwaitAllocatable(from, nvme, before-1, patience)
	if err != nil {
		t.Error(err)
	} else {
		s.note("mounted unseen by udevd", "no uevent; mount", seen.Sub(began))
	}
	s.m.Run("umount", "/mnt")
	s.m.Run("blkdiscard", "--zeroout", node)
	lock.Stop()
	s.await(t, nvme, before)
}

// leftBehind makes a pod create a file system on its drive. The drive must stay healthy while the pod exists, and no
// other pod may get it until it is blank.
func leftBehind(s *story, t *testing.T) {
	pod := vm.Pod{UID: "makes-data", Limits: map[string]int64{nvme: 1}}
	node := s.run(pod)[0]
	from := s.kubelet.Mark()
	// With the lock, udevd notices the end of mkfs. See inUse.
	s.m.Sh("udevadm lock --device " + node + " mkfs.ext4 -q " + node +
		"; mount " + node + " /mnt; echo data > /mnt/file; umount /mnt; udevadm settle")
	// The daemon processes events in order. So when it has processed this event, it has processed all earlier ones too.
	s.expect(t, change{
		name: "plug beside a pod's mkfs", act: func() { s.m.Plug(plugged[0]) }, resource: nvme, by: 1,
		action: "add", device: func() string { return path.Base(s.m.Namespaces()[plugged[0].Serial]) },
	})
	s.m.Unplug(plugged[0])
	s.await(t, nvme, atRest)
	if seen := s.kubelet.Allocatables(from, nvme); slices.Min(seen) < atRest {
		t.Errorf("while a pod holds a drive with a file system, allocatable went %v from %d", seen, atRest)
	}
	began := s.now(t)
	from = s.kubelet.Mark()
	s.kubelet.RemovePod(pod)
	seen, err := s.kubelet.AwaitAllocatable(from, nvme, atRest-1, patience)
	if err != nil {
		t.Error(err)
	} else {
		s.note("a pod's data is left", "no uevent; pod removed", seen.Sub(began))
	}
	s.m.Run("udevadm", "lock", "--device", node, "blkdiscard", "--zeroout", node)
	s.await(t, nvme, atRest)
}

// last returns the namespace of the newest block event with an action.
func (s *story) last(t *testing.T, action string) string {
	t.Helper()
	for _, l := range slices.Backward(s.udev.Lines(0)) {
		f := strings.Fields(l.Text)
		if len(f) > 2 && f[len(f)-1] == "(block)" && f[len(f)-3] == action {
			return path.Base(f[len(f)-2])
		}
	}
	t.Fatalf("no %s of a block device", action)
	return ""
}
