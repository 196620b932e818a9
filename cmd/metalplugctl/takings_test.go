// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckExplains checks the devices that each resource of testdata/check.toml takes or loses to an earlier one, and the
// resources without devices.
func TestCheckExplains(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "t.toml")
	text, err := os.ReadFile("testdata/check.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"conf.d/10.conf", "conf.d/11-disks", "conf.d/12.toml.bak", "conf.d/20.toml", "t.toml.d/30.toml"} {
		if err := place(filepath.Join(dir, name), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := place(file, string(text)); err != nil {
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
	if len(checked.Resources) != 5 || len(checked.Resources[1].Devices) != 6 || len(checked.Resources[1].Lost) != 2 {
		t.Errorf("the resources are %+v", checked.Resources)
	}
}
