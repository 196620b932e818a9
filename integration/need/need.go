// SPDX-License-Identifier: Apache-2.0

// Package need ends tests for which this machine lacks something, so that no skip hides that nothing was tested.
package need

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Lacks ends a test that lacks something, and prints the text. It is a failure where the environment's INTEGRATION_NEED
// lists that need or "all", as CI has it, and a skip elsewhere. "root" stands also for kernel features that root needs,
// such as a loop device, a cgroup or a group of netlink.
func Lacks(t testing.TB, need, format string, args ...any) {
	t.Helper()
	if listed(os.Getenv("INTEGRATION_NEED"), need) {
		t.Fatalf("INTEGRATION_NEED lists "+need+": "+format, args...)
	}
	t.Skipf(format, args...)
}

// listed reports whether a list, with commas or blanks between, has a need in it.
func listed(list, need string) bool {
	needs := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	return slices.Contains(needs, need) || slices.Contains(needs, "all")
}
