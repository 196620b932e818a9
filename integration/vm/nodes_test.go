//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

const tunnels = "metalplug.io/tunnels"

// nodesConfig offers a set of nodes as one device, and namespaces with both of their nodes.
const nodesConfig = `
[reset]
socket = "direct"

[[resource]]
name = "metalplug.io/tunnels"
class = "node"
group = ["/dev/fuse", "/dev/net/tun"]
optional = ["/dev/vhost-*"]

[[resource]]
name = "metalplug.io/nvme"
class = "nvme"
nodes = "both"
[resource.reset]
method = "none"
scrub = "none"
`

// linkRules is the installed file with the rules that create links.
const linkRules = "/usr/lib/udev/rules.d/60-metalplug.rules"

// TestNodes tests sets of nodes, the additional nodes of NVMe, and the links that udev and systemd need.
func TestNodes(t *testing.T) {
	rules, err := os.ReadFile("../../udev/60-metalplug.rules")
	if err != nil {
		t.Fatal(err)
	}
	s := begin(t, nodesConfig, vm.Options{Drives: []vm.Drive{atBoot}})
	s.m.Sh("modprobe fuse; modprobe tun; modprobe vhost_net; udevadm settle")
	if !s.m.Step(t, "start without the rules", func(t *testing.T) { withoutRules(s, t) }) {
		return
	}
	s.m.Write(linkRules, string(rules))
	for _, step := range []struct {
		name string
		run  func(*story, *testing.T)
	}{
		{"the rules make a link to the generic node", genericLink},
		{"a set of nodes is one device", setOfNodes},
		{"a node that daemon-reload would take is warned of", reloadGuard},
	} {
		s.m.Step(t, step.name, func(t *testing.T) { step.run(s, t) })
	}
}

// withoutRules checks that a container does not get a generic node under a name that may belong to another disk after the
// next boot.
func withoutRules(s *story, t *testing.T) {
	from := s.kubelet.Mark()
	s.m.StartDaemon()
	if _, err := s.kubelet.AwaitAllocatable(from, tunnels, 1, patience); err != nil {
		t.Fatal(err)
	}
	if n := s.allocatable(nvme); n != 0 {
		t.Errorf("%d namespaces are allocatable without the link to their generic node", n)
	}
}

func genericLink(s *story, t *testing.T) {
	s.m.Run("udevadm", "verify", linkRules)
	s.m.Run("udevadm", "control", "--reload")
	disk := s.m.Namespaces()[atBoot.Serial]
	generic := strings.Replace(disk, "/dev/nvme", "/dev/ng", 1)
	from := s.kubelet.Mark()
	s.m.Run("udevadm", "trigger", "--action=add", "--subsystem-match=nvme-generic", "--settle")
	wwid := s.m.Run("cat", "/sys/class/block/"+strings.TrimPrefix(disk, "/dev/")+"/wwid")
	if got := s.m.Run("readlink", "-f", "/dev/nvme-generic/by-id/nvme-"+wwid); got != generic {
		t.Fatalf("the link leads to %s, not to %s", got, generic)
	}
	if _, err := s.kubelet.AwaitAllocatable(from, nvme, 1, patience); err != nil {
		t.Fatal(err)
	}
	s.startPod(t, nvme, generic, disk)
}

func setOfNodes(s *story, t *testing.T) {
	// Each call uses another pod, because the kubelet does not call the plugin again for a known pod.
	gets := func(uid string) string {
		pod := vm.Pod{UID: uid, Limits: map[string]int64{tunnels: 1}}
		defer s.kubelet.RemovePod(pod)
		return strings.Join(s.run(pod), " ")
	}
	if got := gets("all"); got != "/dev/fuse /dev/net/tun /dev/vhost-net" {
		t.Errorf("a pod gets %s", got)
	}
	s.expect(t, change{
		name: "a node that is needed goes", act: func() { s.m.Run("modprobe", "-r", "vhost_net", "tun") },
		resource: tunnels, by: -1, action: "remove", device: always("tun"),
	})
	s.expect(t, change{
		name: "it comes back", act: func() { s.m.Run("modprobe", "tun") },
		resource: tunnels, by: 1, action: "add", device: always("tun"),
	})
	if got := gets("needed"); got != "/dev/fuse /dev/net/tun" {
		t.Errorf("without the node that is optional, a pod gets %s", got)
	}
	s.m.Run("modprobe", "vhost_net")
	tries := 0
	s.m.Eventually("the node that is optional", time.Minute, func() bool {
		tries++
		return gets(fmt.Sprint("optional-", tries)) == "/dev/fuse /dev/net/tun /dev/vhost-net"
	})
}

// reloadGuard checks that a device without its link stays in the list with a warning, because the device still works.
func reloadGuard(s *story, t *testing.T) {
	const link = "/dev/char/10:229" // the node of fuse (Documentation/admin-guide/devices.txt)
	warned := func(what string) func() bool {
		return func() bool { return strings.Contains(s.m.Journal("metalplugd", "50"), what) }
	}
	s.m.Run("rm", link)
	s.m.Sh("echo change > /sys/class/misc/vhost-net/uevent") // udevd creates the link of that node only
	s.m.Eventually("a warning", time.Minute, warned("/dev/fuse has no link "+link))
	if n := s.allocatable(tunnels); n != 1 {
		t.Errorf("%d allocatable, though the nodes can be used", n)
	}
	s.m.Run("udevadm", "trigger", "--action=add", "/sys/class/misc/fuse", "--settle")
	s.m.Eventually("the end of the warning", time.Minute, warned("device warning over"))
}
