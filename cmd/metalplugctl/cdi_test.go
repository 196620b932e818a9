// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPreviewShowsCDINames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metalplug.toml")
	text := `[[resource]]
name = "nvidia.com/gpu"
class = "gpu"
match = { PCI_ID = "10DE:*" }
inject = "cdi"
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for output, want := range map[string]string{
		"table": "  cdi     metalplug.nvidia.com/gpu=GPU-",
		"json":  `"cdiDevices": [`,
	} {
		code, stdout, stderr := ctl(t, "preview", "--recording", "gpu-server", "--config", file,
			"--allocate", "nvidia.com/gpu=1", "-o", output)
		if code != exitOK || !strings.Contains(stdout, want) || strings.Contains(stdout, "  node  ") {
			t.Errorf("%s: exit %d, %s\n%s", output, code, stderr, stdout)
		}
	}
}
