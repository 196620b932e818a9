// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
)

// parts of the recording of a server, with the path, the address, the number and the NUMA node of a device.
const (
	recordedGPU = `P: %[1]s
E: SUBSYSTEM=pci
E: DRIVER=nvidia
E: PCI_CLASS=30200
E: PCI_ID=10DE:2330
E: PCI_SLOT_NAME=%[2]s
H: config=de103023
A: numa_node=%[4]d\n
L: driver=../../../../../../bus/pci/drivers/nvidia

F: /dev/nvidia%[3]d=
F: /proc/driver/nvidia/gpus/%[2]s/information=GPU UUID: \t GPU-00000000-0000-0000-0000-00000000000%[3]d\nDevice Minor: \t %[3]d\n

`
	recordedHCA = `P: %[1]s
E: SUBSYSTEM=pci
E: DRIVER=mlx5_core
E: PCI_CLASS=20700
E: PCI_ID=15B3:1021
E: PCI_SLOT_NAME=%[2]s
A: numa_node=%[4]d\n
L: driver=../../../../../../bus/pci/drivers/mlx5_core

P: %[1]s/infiniband/mlx5_%[3]d
E: SUBSYSTEM=infiniband
E: NAME=mlx5_%[3]d
A: node_guid=b8ce:f603:00a1:000%[3]d\n
A: ports/1/phys_state=5: LinkUp\n
A: ports/1/state=4: ACTIVE\n

P: %[1]s/infiniband_verbs/uverbs%[3]d
N: infiniband/uverbs%[3]d
S: infiniband/by-path/pci-%[2]s-uverbs
E: SUBSYSTEM=infiniband_verbs
E: MAJOR=231
E: MINOR=%[3]d
A: ibdev=mlx5_%[3]d\n

`
	recordedDisk = `P: %[1]s
E: SUBSYSTEM=pci
E: DRIVER=nvme
E: PCI_CLASS=10802
E: PCI_ID=144D:A80A
E: PCI_SLOT_NAME=%[2]s
A: numa_node=%[4]d\n
L: driver=../../../../../../bus/pci/drivers/nvme

P: %[1]s/nvme/nvme%[3]d
E: SUBSYSTEM=nvme
A: state=live\n
A: transport=pcie\n

P: %[1]s/nvme/nvme%[3]d/nvme%[3]dn1
N: nvme%[3]dn1
S: disk/by-id/nvme-eui.000000000000000%[3]d
E: SUBSYSTEM=block
E: DEVTYPE=disk
E: MAJOR=259
E: MINOR=%[3]d
A: size=7501476528\n
A: wwid=eui.000000000000000%[3]d\n

`
)

// server returns a made-up recording of a server with these numbers of GPUs, HCAs and disks at its switches. Each socket has
// two switches below its host bridge.
func server(switches ...[3]int) string {
	text := strings.Builder{}
	text.WriteString("F: /proc/self/mountinfo=\nF: /proc/1/mountinfo=\nF: /dev/nvidiactl=\nF: /dev/nvidia-uvm=\nF: /dev/nvidia-uvm-tools=\n\n" +
		"P: /module/nvidia\nE: SUBSYSTEM=module\n\n" +
		"P: /devices/virtual/misc/rdma_cm\nN: infiniband/rdma_cm\nE: SUBSYSTEM=misc\nE: MAJOR=10\nE: MINOR=122\n\n")
	var numbers [3]int
	for n, devices := range switches {
		socket := n / 2
		root, port := 0x20+0x40*socket, 1
		bus := root + 1 + 0x10*(n%2)
		for kind, form := range []string{recordedGPU, recordedHCA, recordedDisk} {
			for range devices[kind] {
				address := fmt.Sprintf("0000:%02x:00.0", bus+1+port)
				path := fmt.Sprintf("/devices/pci0000:%02x/0000:%02x:%02x.0/0000:%02x:00.0/0000:%02x:%02x.0/%s", root, root, 1+n%2, bus, bus+1, port, address)
				fmt.Fprintf(&text, form, path, address, numbers[kind], socket)
				numbers[kind], port = numbers[kind]+1, port+1
			}
		}
	}
	return text.String()
}

// trainBundles is a configuration with bundles of a GPU, an HCA and a disk.
const trainBundles = `[[resource]]
name = "example.org/scratch"
class = "nvme"
reset.scrub = "discard"

[[resource]]
name = "example.org/train"
class = "bundle"
members = ["nvidia.com/gpu", "metalplug.io/infiniband", "example.org/scratch"]
near = "numa"
`

// writeFixture writes a recording and a configuration, and replaces words in both.
func writeFixture(t *testing.T, recorded, text string, words ...string) (machine, file string) {
	t.Helper()
	dir := t.TempDir()
	machine, file = filepath.Join(dir, "recording"), filepath.Join(dir, "t.toml")
	save(t, machine, recorded)
	save(t, file, strings.NewReplacer(words...).Replace(text))
	return machine, file
}

// TestBundlesOfAServer checks a server with two GPUs, two HCAs and two disks at each of four switches. All members of a
// bundle are below one switch. A container with two bundles gets both from one switch.
func TestBundlesOfAServer(t *testing.T) {
	each := [3]int{2, 2, 2}
	machine, file := writeFixture(t, server(each, each, each, each), trainBundles, `"numa"`, `"switch"`)
	code, stdout, stderr := ctl(t, "topology", "--recording", machine, "--config", file, "-o", "json")
	var found api.Topology
	if err := json.Unmarshal([]byte(stdout), &found); code != exitOK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	below := make(map[string][]string) // the switches of each bundle's members
	for _, p := range found.Devices {
		below[p.Bundle] = append(below[p.Bundle], p.Path[2])
	}
	for name, switches := range below {
		if len(switches) != 3 || len(slices.Compact(switches)) != 1 || name == "" {
			t.Errorf("%q has members at %v", name, switches)
		}
	}
	if len(below) != 8 {
		t.Errorf("%d bundles, want 8", len(below))
	}
	code, stdout, stderr = ctl(t, "preview", "--recording", machine, "--config", file, "--once", "--allocate", "example.org/train=2")
	for _, want := range []string{
		"example.org/train    8         8", "env     METALPLUG_NVIDIA_COM_GPU=GPU-00000000-0000-0000-0000-000000000000,GPU-00000000-0000-0000-0000-000000000001\n",
		"env     METALPLUG_METALPLUG_IO_INFINIBAND=infiniband-b8cef60300a10000,infiniband-b8cef60300a10001\n",
		"env     METALPLUG_EXAMPLE_ORG_SCRATCH=nvme-eui.0000000000000000,nvme-eui.0000000000000001\n",
	} {
		if code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("exit %d: %s\nno %q in\n%s", code, stderr, want, stdout)
		}
	}
}

// TestBundlesOfTheManual runs the command of docs/bundles.md with its configuration. The recording has eight GPUs, eight
// HCAs, and seven disks besides the system disk.
func TestBundlesOfTheManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/bundles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```toml\n")
	text, _, _ = strings.Cut(text, "```")
	_, file := writeFixture(t, "", text)
	_, stdout, stderr := ctl(t, "preview", "--recording", "gpu-server", "--config", file, "--once", "--allocate", "example.org/train=2")
	golden(t, "bundles-pod.txt", stdout+stderr)
}

// TestBundlesOfOddNumbers checks a server with 6 GPUs, 5 HCAs and 4 disks. A CPU socket with too few devices of one kind has
// fewer bundles. Its last bundle has members below two switches.
func TestBundlesOfOddNumbers(t *testing.T) {
	t.Setenv("TERM", "xterm")
	machine, file := writeFixture(t, server([3]int{3, 1, 1}, [3]int{1, 2, 2}, [3]int{2, 1, 0}, [3]int{0, 1, 1}), trainBundles)
	_, stdout, _ := ctl(t, "topology", "--recording", machine, "--config", file)
	golden(t, "bundles-topology.txt", stdout)
	top, err := os.MkdirTemp("", "mp") // a short name, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	v := onTerminal(t, 200, 60, "preview", "--recording", machine, "--config", file, "--allocate", "example.org/train=2", "--serve", filepath.Join(top, "try"))
	v.waitText("default/pod-1")
	for name, args := range map[string][]string{
		"bundles-list.txt": {"list", "--all"},
		"bundles-why.txt":  {"why", "bundle-GPU-00000000-0000-0000-0000-000000000001"},
		"bundles-left.txt": {"why", "GPU-00000000-0000-0000-0000-000000000005"},
	} {
		_, stdout, stderr := ctl(t, append([]string{"--socket", filepath.Join(top, "try/control.sock")}, args...)...)
		golden(t, name, stdout+stderr, anySecond, "since TIME", regexp.QuoteMeta(top), "DIR")
	}
	v.press("q")
	v.end()
}

// TestCheckOfBundles checks the message for each mistake in the manual, and the warning for bundles without devices.
func TestCheckOfBundles(t *testing.T) {
	const members = `["nvidia.com/gpu", "metalplug.io/infiniband", "example.org/scratch"]`
	for _, test := range []struct{ name, now, want string }{
		{"not a resource", `["nvidia.com/gpu", "example.org/nothing"]`, `t.toml:9: resource.members: "example.org/nothing" is not a resource; add a [[resource]] of that name`},
		{"in itself", `["nvidia.com/gpu", "example.org/train"]`, `t.toml:9: resource.members: "example.org/train" is a bundle; name its members`},
		{
			"in two", members + "\n[[resource]]\nname = \"example.org/other\"\nclass = \"bundle\"\nmembers = [\"amd.com/gpu\", \"nvidia.com/gpu\"]",
			`t.toml:13: resource.members: "nvidia.com/gpu" is also in the bundle "example.org/train"; remove it from one of them`,
		},
		{
			"shared", members + "\n[[resource]]\nname = \"nvidia.com/gpu\"\nshares = 2",
			`t.toml:9: resource.members: "nvidia.com/gpu" has shares = 2; write shares = 1 for the members of a bundle`,
		},
		{"too few", `["nvidia.com/gpu*2", "amd.com/gpu"]`, `t.toml:9: example.org/train gets no device: too few devices are left of amd.com/gpu; to list the devices, add --explain`},
		{"too far", `["nvidia.com/gpu*2"]`, `t.toml:9: example.org/train gets no device: the remaining devices are not near enough (near = "numa"); to list the devices, add --explain`},
	} {
		t.Run(test.name, func(t *testing.T) {
			machine, file := writeFixture(t, server([3]int{1, 1, 1}, [3]int{}, [3]int{1, 1, 1}), trainBundles+"[hardware]\nsource = \"recording:recording\"\n", members, test.now)
			_, stdout, stderr := ctl(t, "check", file)
			if all := stdout + stderr; !strings.Contains(all, filepath.Dir(machine)+"/"+test.want) {
				t.Errorf("no %q in\n%s", test.want, all)
			}
		})
	}
}
