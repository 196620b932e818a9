// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain builds metalplugd next to the test program, where the commands search for it. It checks that no test leaves
// a goroutine or process running.
func TestMain(m *testing.M) {
	self, err := os.Executable()
	if err == nil {
		out, buildErr := exec.Command("go", "build", "-o", filepath.Join(filepath.Dir(self), "metalplugd"), "../metalplugd").CombinedOutput()
		if err = buildErr; err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build metalplugd:", err)
		os.Exit(1)
	}
	os.Exit(leak.Main(m))
}
