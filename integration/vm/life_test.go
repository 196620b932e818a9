//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

const (
	nvme   = "metalplug.io/nvme"
	fabric = "metalplug.io/infiniband"
	gpu    = "metalplug.io/gpu"
	render = "metalplug.io/render"
)

// hardwareConfig offers the classes of the story. It requests the render nodes of virtual GPUs by name, because they must
// never be offered as GPUs.
const hardwareConfig = `
[reset]
socket = "direct"

[[resource]]
name = "metalplug.io/gpu"
class = "gpu"

[[resource]]
name = "metalplug.io/render"
class = "node"
match = { SUBSYSTEM = "drm", DEVNAME = "/dev/dri/renderD*" }

[[resource]]
name = "metalplug.io/infiniband"
class = "infiniband"

[[resource]]
name = "metalplug.io/nvme"
class = "nvme"
[resource.reset]
method = "none"
scrub = "none"
`

var (
	atBoot  = vm.Drive{Serial: "ATBOOT"}
	heads   = vm.Drive{Serial: "HEADS", Namespaces: 2}
	plugged = []vm.Drive{{Serial: "PLUG1"}, {Serial: "PLUG2"}, {Serial: "PLUG3"}, {Serial: "PLUG4"}}
)

// atRest is the number of allocatable namespaces between the steps.
const atRest = 3

// TestHardware tests the life of a node. Hardware is added, changed and removed while metalplugd runs, with the real
// udevd and the real device manager.
func TestHardware(t *testing.T) {
	s := begin(t, hardwareConfig, vm.Options{
		Drives:  []vm.Drive{atBoot, heads},
		Devices: []string{"virtio-gpu-pci"},
	})
	if !s.m.Step(t, "start", func(t *testing.T) { start(s, t) }) {
		return
	}
	for _, step := range []struct {
		name string
		run  func(*story, *testing.T)
	}{
		{"drives come and go one by one", oneByOne},
		{"drives come and go all at once", atOnce},
		{"a drive is removed in software", inSoftware},
		{"a storm of events changes nothing", storm},
		{"what the host uses is not offered", inUse},
		{"a mount that udevd does not see", mountedUnseen},
		{"what a pod leaves behind is not offered", leftBehind},
		{"the boot disk is not offered", bootDisk},
		{"render nodes", renderNodes},
		{"RDMA devices", rdma},
		{"drives change while the kubelet is away", kubeletAway},
		{"drives change while metalplugd is away", daemonAway},
		{"metalplugd restarts", restart},
		{"the clock jumps", clockJumps},
		{"the machine reboots", reboot},
		{"a drive with two namespaces goes", headsGo},
	} {
		if !s.m.Step(t, step.name, func(t *testing.T) { step.run(s, t) }) {
			s.m.Step(t, "after "+step.name, func(*testing.T) { tidy(s) })
		}
	}
}

// tidy undoes the changes of a failed step.
func tidy(s *story) {
	s.m.UnplugAll()
	s.m.Try("sh", "-c", `exec 2>&1; umount /mnt; swapoff -a; rdma link del rxe0; modprobe -r vgem
		systemctl start metalplugd; echo 1 > /sys/bus/pci/rescan; udevadm settle`)
	if node := s.m.Namespaces()[atBoot.Serial]; node != "" {
		s.m.Run("udevadm", "lock", "--device", node, "blkdiscard", "--zeroout", node)
	}
}

// start checks that exactly the devices that were present at boot are offered.
func start(s *story, t *testing.T) {
	from, began := s.kubelet.Mark(), s.now(t)
	s.m.StartDaemon()
	ready := s.now(t)
	seen, err := s.kubelet.AwaitAllocatable(from, nvme, atRest, patience)
	if err != nil {
		t.Fatal(err)
	}
	s.note("start", "systemctl start to ready", ready.Sub(began))
	s.note("start", "systemctl start to capacity", seen.Sub(began))
	for resource, want := range map[string]int64{nvme: atRest, fabric: 0, gpu: 0, render: 1} {
		if got := s.allocatable(resource); got != want {
			t.Errorf("%s: %d allocatable at start instead of %d", resource, got, want)
		}
	}
}

// bootDisk checks the boot drive of the machine, which is also an NVMe drive. A pod that takes all drives must not get it.
func bootDisk(s *story, t *testing.T) {
	pod := vm.Pod{UID: "takes-all", Limits: map[string]int64{nvme: s.allocatable(nvme)}}
	real := s.run(pod)
	defer s.endPod(t, pod)
	all := s.m.Namespaces()
	for _, name := range []string{"ATBOOT", "HEADS", "HEADS/2"} {
		if !slices.Contains(real, all[name]) {
			t.Errorf("container gets %v, not %s (%s)", real, all[name], name)
		}
	}
	boot := all["BOOT0"]
	controller := boot[:strings.LastIndexByte(boot, 'n')]
	for _, n := range real {
		if n == boot || n == controller || strings.HasPrefix(n, boot+"p") {
			t.Errorf("container gets %s of the boot disk", n)
		}
	}
}

// renderNodes checks that virtual GPUs are not offered as GPUs, but that a resource can request their nodes by name.
func renderNodes(s *story, t *testing.T) {
	virtio := path.Base(s.m.Sh("ls -d /sys/bus/virtio/drivers/virtio_gpu/virtio*"))
	driver := func(verb string) func() {
		return func() { s.m.Sh("echo " + virtio + " > /sys/bus/virtio/drivers/virtio_gpu/" + verb) }
	}
	for _, c := range []change{
		{name: "load vgem", act: func() { s.m.Run("modprobe", "vgem") }, by: 1, action: "add", device: always("renderD129")},
		{name: "unload vgem", act: func() { s.m.Run("modprobe", "-r", "vgem") }, by: -1, action: "remove", device: always("renderD129")},
		{name: "unbind virtio-gpu", act: driver("unbind"), by: -1, action: "remove", device: always("renderD128")},
		{name: "bind virtio-gpu", act: driver("bind"), by: 1, action: "add", device: always("renderD128")},
	} {
		c.resource = render
		s.expect(t, c)
		if n := s.allocatable(gpu); n != 0 {
			t.Errorf("after %s: %d of %s offered", c.name, n, gpu)
		}
	}
	s.startPod(t, render, "/dev/dri/renderD128")
}

// rdma adds a soft RoCE device, switches its link off and on, and removes the device. The kernel sends no uevent for a
// change of the link. The first device of a machine is complete only after udevd has loaded the module that creates rdma_cm.
func rdma(s *story, t *testing.T) {
	s.m.Sh("modprobe rdma_rxe; ip link add dummy0 type dummy; ip addr add 192.0.2.1/24 dev dummy0; ip link set dummy0 up")
	add := func() { s.m.Sh("rdma link add rxe0 type rxe netdev dummy0") }
	remove := func() { s.m.Sh("rdma link del rxe0") }
	s.expect(t, change{name: "first RDMA device", act: add, resource: fabric, by: 1, action: "add", device: always("rdma_cm")})
	linkState(s, t)
	s.expect(t, change{name: "rdma link del", act: remove, resource: fabric, by: -1, action: "remove", device: always("rxe0")})
	s.expect(t, change{name: "rdma link add", act: add, resource: fabric, by: 1, action: "add", device: always("rxe0")})
	s.startPod(t, fabric, "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")
	s.expect(t, change{name: "rdma link del", act: remove, resource: fabric, by: -1, action: "remove", device: always("rxe0")})
}

func linkState(s *story, t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		state string
		want  int64
	}{{"down", 0}, {"up", 1}} {
		from, began := s.kubelet.Mark(), s.now(t)
		s.m.Sh("ip link set dummy0 " + c.state)
		seen, err := s.kubelet.AwaitAllocatable(from, fabric, c.want, patience)
		if err != nil {
			t.Errorf("link %s: %v", c.state, err)
			continue
		}
		s.note("link "+c.state, "no uevent; ip link set", seen.Sub(began))
	}
}

// now returns the machine's clock.
func (s *story) now(t *testing.T) time.Time {
	t.Helper()
	var sec, nsec int64
	if _, err := fmt.Sscanf(s.m.Run("date", "+%s %N"), "%d %d", &sec, &nsec); err != nil {
		t.Fatal(err)
	}
	return time.Unix(sec, nsec)
}
