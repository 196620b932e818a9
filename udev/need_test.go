// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// lacks skips a test that needs root, or what only root has (a namespace, netlink's groups, the kernel's log), and says
// why. Where INTEGRATION_NEED lists "root", as in CI, it fails instead: there a skip would hide that nothing was tested.
func lacks(t *testing.T, format string, args ...any) {
	t.Helper()
	reason := fmt.Sprintf(format, args...)
	if slices.Contains(strings.Split(os.Getenv("INTEGRATION_NEED"), ","), "root") {
		t.Fatalf("INTEGRATION_NEED lists root: %s", reason)
	}
	t.Skip(reason)
}
