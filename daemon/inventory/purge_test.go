// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/metalplug/metalplug/daemon/lease"
)

// The purge of the package reads the state file without this package: it names each disk that may hold a pod's data.
func TestPurgeNamesTheDisksWithData(t *testing.T) {
	postrm, err := os.ReadFile("../../packaging/debian/metalplug.postrm")
	if err != nil {
		t.Fatal(err)
	}
	function := regexp.MustCompile(`(?ms)^unerased\(\) \{\n.*?^\}\n`).Find(postrm)
	if function == nil {
		t.Fatal("metalplug.postrm has no function unerased")
	}
	var b bytes.Buffer
	state := contents{Version: stateVersion, Devices: []record{
		{ID: "nvme-1", Class: "nvme", Disk: "eui.1", Lease: lease.Lease{Used: true, Tenants: []string{`a"b`, "c"}}},
		{ID: "nvme-2", Class: "nvme", Disk: "eui.2"},
		{ID: "GPU-3", Class: "gpu", Lease: lease.Lease{Used: true}},
		{ID: "node-4", Class: "node", Disk: "naa.4", Lease: lease.Lease{Used: true, Residue: true}},
	}}
	if err := encodeAll(state, &b); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), stateFile)
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("sh", "-euc", string(function)+"unerased \"$1\"", "sh", file).CombinedOutput()
	if want := "node-4\nnvme-1\n"; err != nil || string(out) != want {
		t.Errorf("unerased: %v, %q, want %q", err, out, want)
	}
}
