// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
)

// TestBundlesOfTheManual runs the command of docs/bundles.md with its configuration. The recording has eight GPUs, eight
// HCAs, and seven disks besides the system disk.
func TestBundlesOfTheManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/bundles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```toml\n")
	text, _, _ = strings.Cut(text, "```")
	file := filepath.Join(t.TempDir(), "t.toml")
	save(t, file, text)
	_, stdout, stderr := ctl(t, "preview", "--recording", "gpu-server", "--config", file, "--once", "--allocate", "example.org/train=2")
	golden(t, "bundles-pod.txt", stdout+stderr)
}

// TestBundlesOfOddNumbers offers fewer HCAs and disks than GPUs on each CPU socket. The number of bundles is the smallest of
// these numbers. On the first socket, a bundle has members below two switches.
func TestBundlesOfOddNumbers(t *testing.T) {
	n := newNode(t, bundledText(t, "gpu-server"), `
[[resource]]
name = "nvidia.com/gpu"
class = "gpu"
match = { PCI_ID = "10DE:*" }

[[resource]]
name = "metalplug.io/infiniband"
class = "infiniband"
exclude = { PCI_SLOT_NAME = "0000:19:00.0|0000:1b:00.0|0000:9d:00.0" }

[[resource]]
name = "example.org/scratch"
class = "nvme"
exclude = { PCI_SLOT_NAME = "0000:4f:00.0|0000:9e:00.0|0000:ce:00.0|0000:cf:00.0" }
reset.scrub = "discard"

[[resource]]
name = "example.org/train"
class = "bundle"
members = ["nvidia.com/gpu", "metalplug.io/infiniband", "example.org/scratch"]
near = "numa"
`)
	k := n.connect("example.org/train")
	if _, err := k.Allocate(t.Context(), "example.org/train", 1); err != nil {
		t.Fatal(err)
	}
	waitAnswer(n, "/v1/status", func(s api.Status) bool { return s.Devices.Allocated > 0 })
	for name, args := range map[string][]string{
		"bundles-topology.txt": {"topology"},
		"bundles-why.txt":      {"why", "bundle-GPU-6513270e-269e-4d37-b2a7-4de452e6b438"},
		"bundles-left.txt":     {"why", "GPU-8d116ece-1738-47d9-bd9c-172411e20b8f"},
	} {
		_, stdout, stderr := n.ctl(args...)
		golden(t, name, stdout+stderr, anySecond, "since TIME", n.dir, "DIR")
	}
}

// TestCheckOfBundles checks the warnings for a bundle that gets no devices.
func TestCheckOfBundles(t *testing.T) {
	for members, want := range map[string]string{
		`["nvidia.com/gpu*2", "amd.com/gpu"]`: "too few devices are left of amd.com/gpu",
		`["nvidia.com/gpu*2"]`:                `the remaining devices are not near enough (near = "numa")`,
	} {
		file := filepath.Join(t.TempDir(), "t.toml")
		save(t, file, `[[resource]]
name = "nvidia.com/gpu"
match = { PCI_SLOT_NAME = "0000:18:00.0|0000:9a:00.0" } # one on each socket
[[resource]]
name = "example.org/train"
class = "bundle"
near = "numa"
members = `+members)
		_, stdout, stderr := ctl(t, "check", file, "--recording", "gpu-server")
		if want = "warning: " + file + ":8: example.org/train gets no device: " + want + "; to list the devices, add --explain\n"; !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s%s", want, stdout, stderr)
		}
	}
}
