//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// rdmaRenamed renames an RDMA device, like rdma-core's rule, and changes the mode for network namespaces.
func rdmaRenamed(s *story, t *testing.T) {
	s.m.Sh(`modprobe rdma_rxe; ip link add dummy0 type dummy; ip addr add 192.0.2.1/24 dev dummy0
		ip link set dummy0 up; rdma link add rxe0 type rxe netdev dummy0`)
	s.because(t, "rxe0", "the adapter has no umad device: load the ib_umad module")
	s.expect(t, change{
		name: "modprobe ib_umad", act: func() { s.m.Run("modprobe", "ib_umad") }, resource: fabric, by: 1,
		action: "add", device: always("umad0"),
	})
	before := s.healthy(fabric)
	from, name := s.kubelet.Mark(), "rxe0"
	for _, next := range []string{"roce5", "roce6", "roce7"} {
		events := s.udev.Mark()
		s.m.Run("rdma", "dev", "set", name, "name", next)
		s.udev.Event(events, "move", next, s.now(t))
		s.because(t, next, "")
		name = next
	}
	if after := s.healthy(fabric); !slices.Equal(before, after) {
		t.Errorf("after it was renamed, healthy devices were %v and are %v", before, after)
	}
	s.onlyAllocatable(t, from, fabric, 1)
	s.startPod(t, fabric, "/dev/infiniband/rdma_cm", "/dev/infiniband/umad0", "/dev/infiniband/uverbs0")
	namespaces(s, t)
	s.expect(t, change{
		name: "rdma link del", act: func() { s.m.Run("rdma", "link", "del", "roce7") }, resource: fabric, by: -1,
		action: "remove", device: always("roce7"),
	})
	s.m.Sh("ip link del dummy0; modprobe -r ib_umad")
}

func namespaces(s *story, t *testing.T) {
	t.Helper()
	const warning = "RDMA devices belong to one network namespace each"
	_, cursor := s.journal("")
	s.m.Run("rdma", "system", "set", "netns", "exclusive")
	began := s.now(t)
	s.m.Eventually("the warning in the journal", patience, func() bool {
		log, _ := s.journal(cursor)
		return strings.Contains(log, "device warning") && strings.Contains(log, warning)
	})
	s.note("netns exclusive: warning", "no uevent; rdma system set", s.now(t).Sub(began))
	s.because(t, "roce7", warning)
	s.m.Run("rdma", "system", "set", "netns", "shared")
	s.because(t, "roce7", "")
	if n := s.allocatable(fabric); n != 1 {
		t.Errorf("%d allocatable with a warning", n)
	}
}

// renderLink is the link to the render node that systemd needs.
const renderNode, renderLink = "/dev/dri/renderD128", "/dev/char/226:128"

// withoutLink removes the link, which causes no event. The next inspection must notice the missing link. After an event for
// the device, udevd creates the link again.
func withoutLink(s *story, t *testing.T) {
	const warning = renderNode + " has no link " + renderLink + ": systemctl daemon-reload would take it from running containers"
	from := s.kubelet.Mark()
	s.m.Run("rm", renderLink)
	s.trigger("/sys/bus/pci/devices/0000:00:00.0")
	s.because(t, "renderD128", warning)
	s.trigger("/sys/class/drm/renderD128")
	s.because(t, "renderD128", "")
	s.m.Run("test", "-L", renderLink)
	s.onlyAllocatable(t, from, render, 1)
}

// startScope starts a systemd scope with the given device properties. A shell in the scope tries to open the render node each
// time ask is called.
func (s *story) startScope(properties ...string) (ask func(t *testing.T, when string, want bool), end func()) {
	argv := []string{"systemd-run", "--scope", "--quiet", "--property=DevicePolicy=closed"}
	argv = append(append(argv, properties...), "sh", "-c",
		"echo ready; while read -r line; do (exec 3<>"+renderNode+") 2>/dev/null && echo $line yes || echo $line no; done")
	p := s.m.Start(argv...)
	return func(t *testing.T, when string, want bool) {
		t.Helper()
		from := p.Mark()
		p.Send(when)
		l, err := p.Await(from, patience, func(l vm.Line) bool { return strings.HasPrefix(l.Text, when+" ") })
		if err != nil {
			t.Fatalf("%v\n%s", err, p.Text(0))
		}
		if got := l.Text == when+" yes"; got != want {
			t.Errorf("%v %s: it can open %s: %v", properties, when, renderNode, got)
		}
	}, p.Stop
}

// daemonReload checks that a container's scope keeps its device while the link exists, and that a scope without the
// link never gets it.
func daemonReload(s *story, t *testing.T) {
	with, end := s.startScope("--property=DeviceAllow=" + renderLink + " rw")
	defer end()
	without, end := s.startScope()
	defer end()
	for _, when := range []string{"before", "after"} {
		with(t, when, true)
		without(t, when, false)
		s.m.Run("systemctl", "daemon-reload")
	}
}

// shippedRules checks that the udev rules of the package create links to the generic nodes of namespaces and to
// NVIDIA's nodes, which udev does not create.
func shippedRules(s *story, t *testing.T) {
	node := s.m.Namespaces()["BOTH"]
	generic := strings.Replace(node, "/nvme", "/ng", 1)
	s.because(t, path.Base(node), "udev's rule 60-metalplug.rules creates it")
	rules, err := os.ReadFile("../../udev/60-metalplug.rules")
	if err != nil {
		t.Fatal(err)
	}
	s.m.Write("/etc/udev/rules.d/60-metalplug.rules", string(rules))
	s.m.Run("udevadm", "control", "--reload")
	s.expect(t, change{
		name: "generic node gets its link", resource: both, by: 1,
		act:    func() { s.m.Run("udevadm", "trigger", "--action", "change", "--subsystem-match", "nvme-generic") },
		action: "change", device: always(strings.TrimPrefix(generic, "/dev/")),
	})
	s.startPod(t, both, generic, node)
	nvidiaLinks(s, t)
}

// nvidiaLinks loads a driver and a module with NVIDIA's names. It checks that the udev rules create the links even before
// the nodes exist.
func nvidiaLinks(s *story, t *testing.T) {
	t.Helper()
	card := s.pciFunction("0x1af4", "0x1110")
	s.m.Sh("modprobe nvidia-uvm; echo nvidia > " + card + "/driver_override; echo " + path.Base(card) + " > /sys/bus/pci/drivers_probe")
	uvm := s.m.Sh(`sed -n 's/^ *\([0-9]*\) nvidia-uvm$/\1/p' /proc/devices`)
	want := map[string]string{
		"195:255": "../nvidiactl", "195:254": "../nvidia-modeset", "195:3": "../nvidia3",
		uvm + ":0": "../nvidia-uvm", uvm + ":1": "../nvidia-uvm-tools",
	}
	for number, target := range want {
		s.m.Eventually("the link "+number, patience, func() bool {
			return strings.TrimSpace(s.m.Try("readlink", "/dev/char/"+number).Stdout) == target
		})
	}
	s.m.Sh("echo " + path.Base(card) + " > " + card + "/driver/unbind; echo > " + card + "/driver_override; modprobe -r nvidia-uvm")
}
