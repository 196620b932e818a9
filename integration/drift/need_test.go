// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"os/exec"
	"testing"

	"github.com/metalplug/metalplug/integration/need"
)

// program returns the path of a program. Without the program the test is skipped, or fails if INTEGRATION_NEED requires
// the program. There, a skip would hide that nothing was checked.
func program(t *testing.T, name, from string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		need.Lacks(t, name, "%s (Debian: %s) is not installed", name, from)
	}
	return path
}
