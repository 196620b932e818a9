// SPDX-License-Identifier: Apache-2.0

package udev_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/need"
)

const rulesFile = "60-metalplug.rules"

// script returns the shell script in the rule of a subsystem, for a device of that name or path, as udev passes it to
// the shell.
func script(t *testing.T, subsystem, name string) string {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^SUBSYSTEM=="` + subsystem + `",.*(?:PROGRAM=|RUN\+=)"/bin/sh -c '([^']*)'"`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no script for subsystem %s", rulesFile, subsystem)
	}
	// In the substitutions of udev(7), "$$" is "$", "%k" the kernel name, and "%p" the path of the device.
	return strings.NewReplacer("$$", "$", "%k", path.Base(name), "%p", name).Replace(string(found[1]))
}

// run executes a shell script with files below a directory instead of this machine's. It returns the output and the
// links in /dev/char.
func run(t *testing.T, script string, files map[string]string) (said string, links map[string]string) {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(root, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	char := filepath.Join(root, "dev/char")
	if err := os.MkdirAll(char, 0o755); err != nil {
		t.Fatal(err)
	}
	moved := regexp.MustCompile(`/(dev|proc|sys)/`).ReplaceAllString(script, root+"/$1/")
	// A script that waits for a file does not wait here. All files exist from the start.
	out, err := exec.Command("/bin/sh", "-c", strings.ReplaceAll(moved, "sleep 0.1", "true")).Output()
	if err != nil {
		return "", nil
	}
	entries, err := os.ReadDir(char)
	if err != nil {
		t.Fatal(err)
	}
	links = make(map[string]string)
	for _, e := range entries {
		if links[e.Name()], err = os.Readlink(filepath.Join(char, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return strings.TrimSpace(string(out)), links
}

// The link of a generic node uses the wwid of its own namespace, whatever its numbers are. It does not use that of the
// namespace whose disk has the same numbers.
func TestRuleForNVMe(t *testing.T) {
	const first, second, head = "/devices/pci0000:00/0000:00:1d.0/nvme/nvme4/", "/devices/pci0000:00/0000:00:1e.0/nvme/nvme3/", "/devices/virtual/nvme-subsystem/nvme-subsys5/"
	files := map[string]string{
		"sys" + first + "nvme3n2/wwid": "eui.01\n", "sys" + first + "nvme3n12/wwid": "eui.02\n", "sys" + first + "ng4n2/dev": "242:1\n", "sys" + first + "ng4n12/dev": "242:2\n",
		"sys" + second + "nvme4n2/wwid": "eui.03\n", "sys" + second + "ng3n2/dev": "242:3\n", "sys" + second + "nvme5c3n1/wwid": "eui.04\n",
		"sys" + head + "nvme5n1/wwid": "eui.04\n", "sys" + head + "ng5n1/dev": "242:4\n", "sys/class/block/nvme4n2/wwid": "eui.03\n",
		"sys" + first + "ng4n3/dev": "242:5\n",
	}
	for device, want := range map[string]string{
		first + "ng4n2": "eui.01", first + "ng4n12": "eui.02", second + "ng3n2": "eui.03", head + "ng5n1": "eui.04", first + "ng4n3": "",
	} {
		if said, _ := run(t, script(t, "nvme-generic", device), files); said != want {
			t.Errorf("%s: %q, want %q", device, said, want)
		}
	}
}

func TestRulesForNVIDIA(t *testing.T) {
	const devices = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n508 nvidia-uvm\n509 nvidia-caps\n\nBlock devices:\n259 blkext\n"
	const gpu = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 128\nGPU UUID: \t GPU-8ed0e2b1\nDevice Minor: \t 3\nGPU Excluded:\t No\n"
	for _, test := range []struct {
		name, subsystem, device string
		files, want             map[string]string
	}{
		{
			"a GPU", "pci", "0000:3b:00.0",
			map[string]string{"proc/driver/nvidia/gpus/0000:3b:00.0/information": gpu},
			map[string]string{"195:255": "../nvidiactl", "195:254": "../nvidia-modeset", "195:3": "../nvidia3"},
		},
		{
			"a GPU without a minor number", "pci", "0000:3b:00.0",
			map[string]string{"proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: x\n"},
			map[string]string{"195:255": "../nvidiactl", "195:254": "../nvidia-modeset"},
		},
		{
			"unified memory", "module", "nvidia_uvm",
			map[string]string{"proc/devices": devices},
			map[string]string{"508:0": "../nvidia-uvm", "508:1": "../nvidia-uvm-tools"},
		},
		{"no unified memory", "module", "nvidia_uvm", map[string]string{"proc/devices": "Character devices:\n  1 mem\n"}, map[string]string{}},
	} {
		if _, links := run(t, script(t, test.subsystem, test.device), test.files); !maps.Equal(links, test.want) {
			t.Errorf("%s: %v, want %v", test.name, links, test.want)
		}
	}
}

// udevd ignores a rule that it cannot parse, and reports that only in the journal.
func TestRulesAreWellFormed(t *testing.T) {
	const since = 254 // udevadm(8), verify
	out, err := exec.Command("udevadm", "--version").Output()
	if err != nil {
		out = []byte("0")
	}
	if version, err := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || version < since {
		need.Lacks(t, "udevadm", "udevadm of version %q has no verify, which came with %d", bytes.TrimSpace(out), since)
	}
	if out, err := exec.Command("udevadm", "verify", rulesFile, "../systemd/70-metalplug.rules").CombinedOutput(); err != nil {
		t.Errorf("udevadm verify: %v\n%s", err, out)
	}
}
