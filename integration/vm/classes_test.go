//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

const (
	both    = "metalplug.io/both"
	port    = "metalplug.io/fpga"
	clock   = "metalplug.io/clock"
	scratch = "metalplug.io/scratch"
)

// classesConfig makes metalplug probe disks, so that it also notices changes that udevd has missed. It requests the generic
// nodes of namespaces and umad, which are off by default.
const classesConfig = `
[reset]
socket = "direct"

[[resource]]
name = "metalplug.io/both"
class = "nvme"
match = { "ATTR{device/serial}" = "BOTH" }
nodes = "both"
[resource.reset]
method = "none"
scrub = "none"

[[resource]]
name = "metalplug.io/nvme"
class = "nvme"
[resource.reset]
method = "none"
scrub = "none"

[[resource]]
name = "metalplug.io/fpga"
class = "fpga"

[[resource]]
name = "metalplug.io/infiniband"
class = "infiniband"
umad = true

[[resource]]
name = "metalplug.io/gpu"
class = "gpu"

[[resource]]
name = "metalplug.io/render"
class = "node"
match = { SUBSYSTEM = "drm", DEVNAME = "/dev/dri/renderD*" }

[[resource]]
name = "metalplug.io/clock"
class = "node"
match = { SUBSYSTEM = "ptp" }

[[resource]]
name = "metalplug.io/scratch"
class = "node"
match = { SUBSYSTEM = "block", DEVNAME = "/dev/sd*" }
[resource.reset]
method = "none"
scrub = "zero"
when = "both"
`

var members = []vm.Drive{{Serial: "MEMBER1"}, {Serial: "MEMBER2"}}

// TestClasses tests the state that the kernel shows for each class of hardware, apart from hotplug. It covers many uses
// of a disk, bus errors, programming a card, and renamed links.
func TestClasses(t *testing.T) {
	s := begin(t, classesConfig, vm.Options{
		Slots:   4,
		Drives:  append([]vm.Drive{{Serial: "BOTH"}}, members...),
		Objects: []string{"memory-backend-ram,id=registers,size=1M"},
		Devices: []string{
			"bochs-display",
			"pcie-root-port,id=render,chassis=50,slot=50", "virtio-gpu-pci,id=gpu,bus=render,aer=on",
			"pcie-root-port,id=clock,chassis=51,slot=51", "e1000e,id=nic,bus=clock",
			"ivshmem-plain,memdev=registers",
		},
	})
	if !s.m.Step(t, "start", func(t *testing.T) { startClasses(s, t) }) {
		return
	}
	for _, step := range []struct {
		name string
		run  func(*story, *testing.T)
	}{
		{"displays are no GPUs", testDisplays},
		{"md keeps its members, running and stopped", raid},
		{"LVM keeps a volume that is not active", volume},
		{"dm-crypt keeps what it opens", crypt},
		{"bcache keeps its backing disk", cache},
		{"a process has a drive for itself", exclusive},
		{"a drive stands still", standstill},
		{"a namespace over a fabric", loopNamespace},
		{"a SCSI disk is erased between two pods", scsi},
		{"a PCIe error that no driver recovers from", testUnrecovered},
		{"a PCIe error that the driver recovers from", testRecovered},
		{"a fatal PCIe error", fatal},
		{"an FPGA's port", fpgaPort},
		{"an RDMA device is renamed", rdmaRenamed},
		{"a node without the link that systemd knows it by", withoutLink},
		{"systemctl daemon-reload takes nothing away", daemonReload},
		{"the shipped rules for udev", shippedRules},
	} {
		s.m.Step(t, step.name, func(t *testing.T) { step.run(s, t) })
	}
}

// startClasses checks that a drive with a requested generic node is offered only after the udev rule has created its
// link.
func startClasses(s *story, t *testing.T) {
	s.m.StartDaemon()
	s.await(t, nvme, int64(len(members)))
	for resource, want := range map[string]int64{both: 0, port: 0, fabric: 0, gpu: 0, render: 1, clock: 1, scratch: 0} {
		if got := s.allocatable(resource); got != want {
			t.Errorf("%s: %d allocatable at start instead of %d", resource, got, want)
		}
	}
}

// testDisplays checks that QEMU's display adapters are listed, with the reason why they are not GPUs.
func testDisplays(s *story, t *testing.T) {
	for device, driver := range map[string]string{"0x12340x1111": "bochs-drm", "0x1af40x1050": "virtio-pci"} {
		s.because(t, path.Base(s.pciFunction(device[:6], device[6:])), "a display adapter with driver "+driver+", not a GPU")
	}
	if n := s.allocatable(gpu); n != 0 {
		t.Errorf("%d GPUs are offered", n)
	}
}

// shown has the fields of a device in the daemon's answer.
type shown struct {
	ID, Resource, Health, Reason, Warning, Model string
	SysPath                                      string `json:"sysfsPath"`
	Held                                         bool
}

// list returns the daemon's list.
func (s *story) list(t *testing.T) []shown {
	t.Helper()
	var all []shown
	r := s.m.Try("metalplugctl", "list", "--output", "json")
	if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil {
		t.Fatalf("metalplugctl list: %v\n%s%s", err, r.Stdout, r.Stderr)
	}
	return all
}

// shown returns a device by its name in sysfs. It returns the zero value if the daemon does not know the device.
func (s *story) shown(t *testing.T, name string) shown {
	t.Helper()
	for _, d := range s.list(t) {
		if path.Base(d.SysPath) == name {
			return d
		}
	}
	return shown{}
}

// because waits until the daemon reports this reason or warning for a device, or none if reason is empty. It returns the
// reported device.
func (s *story) because(t *testing.T, name, reason string) (d shown) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s: %+v", name, d)
		}
	}()
	s.m.Eventually(fmt.Sprintf("%s to have %q", name, reason), patience, func() bool {
		d = s.shown(t, name)
		if reason == "" {
			return d.ID != "" && d.Reason+d.Warning == ""
		}
		return strings.Contains(d.Reason+"; "+d.Warning, reason)
	})
	return d
}

// checkStaysInUse runs the command act, after which the host still uses a drive. It waits for the reason in the daemon's list,
// and checks that the drive is not offered in between.
func (s *story) checkStaysInUse(t *testing.T, node, act, reason string) {
	t.Helper()
	from, before := s.kubelet.Mark(), s.allocatable(nvme)
	s.m.Sh(act)
	s.because(t, path.Base(node), reason)
	s.onlyAllocatable(t, from, nvme, before)
}

// onlyAllocatable fails if a resource had another number of allocatable devices since a mark.
func (s *story) onlyAllocatable(t *testing.T, from int, resource string, want int64) {
	t.Helper()
	for _, n := range append(s.kubelet.Allocatables(from, resource), s.allocatable(resource)) {
		if n != want {
			t.Errorf("allocatable %s went to %d from %d", resource, n, want)
			return
		}
	}
}

// pciFunction returns the sysfs path of the function with these IDs.
func (s *story) pciFunction(vendor, device string) string {
	return s.m.Sh("for d in /sys/bus/pci/devices/*; do [ $(cat $d/vendor $d/device | tr -d '\\n') != " + vendor + device + " ] || echo $d; done")
}

// trigger causes an event without a change of the device, so that the daemon inspects the device again.
func (s *story) trigger(sysPath string) {
	s.m.Run("udevadm", "trigger", "--action", "change", sysPath)
}

// block returns the sysfs path of a block device.
func block(node string) string { return "/sys/class/block/" + path.Base(node) }
