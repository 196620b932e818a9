// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckExplains checks the devices that each resource takes or loses to an earlier one, and the resources without
// devices.
func TestCheckExplains(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "t.toml")
	text := `builtin = false
[[resource]]
name = "example.org/fast"
class = "nvme"
reset.scrub = "none"
match = { PCI_SLOT_NAME = "0000:1d:00.0|0000:1c:00.0" }
[[resource]]
name = "example.org/disk"
class = "nvme"
reset.scrub = "zero"
exclude = { METALPLUG_ID = "nvme-eui.0", DEVNAME = "/dev/nvme99n1" }
[[resource]]
name = "example.org/late"
class = "nvme"
reset.scrub = "none"
serve = "dra"
match = { PCI_SLOT_NAME = "0000:1d:00.0" }
[[resource]]
name = "example.org/typo"
class = "gpu"
match = { PCI_ID = "^10DE:.*" }
exclude = { ID_MODEL = "A(1|2)", DEVNAME = "/dev/x.*|/dev/y[0-9]+" }
`
	text += `[[resource]]
name = "example.org/odd"
class = "gpu"
match = { PCI_SLOT_NAME = "18:00.0", PCI_ID = "10DE", DEVPATH = "*", DEVNAME = "kvm|/dev/kvm", ID_PATH = "a | b", ID_NAME = "", ID_MODEL = "X.*" }
`
	for _, name := range []string{"conf.d/10.conf", "conf.d/11-disks", "conf.d/12.toml.bak", "conf.d/20.toml", "t.toml.d/30.toml"} {
		if err := place(filepath.Join(dir, name), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := place(file, text); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := ctl(t, "check", file, "--explain", "--recording", "gpu-server")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	golden(t, "check-explain.txt", strings.ReplaceAll(stdout, dir, "DIR"))
	_, stdout, _ = ctl(t, "check", file, "--recording", "gpu-server")
	golden(t, "check.txt", strings.ReplaceAll(stdout, dir, "DIR"))
	code, stdout, stderr = ctl(t, "check", file, "--recording", "gpu-server", "--explain", "-o", "json")
	var checked checkedFiles
	if err := json.Unmarshal([]byte(stdout), &checked); code != exitOK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	if len(checked.Unclaimed) == 0 {
		t.Error("the GPUs are not listed, which no resource takes")
	}
	var counts [][2]int
	for _, r := range checked.Resources {
		counts = append(counts, [2]int{len(r.Devices), len(r.Lost)})
	}
	want := [][2]int{{2, 0}, {6, 2}, {0, 1}, {0, 0}, {0, 0}}
	if len(counts) != len(want) {
		t.Fatalf("%v, want %v", counts, want)
	}
	for i := range want {
		if counts[i] != want[i] {
			t.Errorf("%s takes and loses %v, want %v", checked.Resources[i].Resource, counts[i], want[i])
		}
	}
}
