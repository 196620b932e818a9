// SPDX-License-Identifier: Apache-2.0

// Package need ends tests if this machine lacks something that they need. In CI such a test fails, so that a skip cannot
// hide that nothing was tested.
package need

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Lacks ends a test and prints the text. The test fails if the environment variable INTEGRATION_NEED lists the need or
// "all", as in CI. Otherwise the test is skipped. "root" also covers kernel features that need root, such as loop devices,
// cgroups and netlink groups.
func Lacks(t testing.TB, need, format string, args ...any) {
	t.Helper()
	if listed(os.Getenv("INTEGRATION_NEED"), need) {
		t.Fatalf("INTEGRATION_NEED lists "+need+": "+format, args...)
	}
	t.Skipf(format, args...)
}

// listed reports whether a list, separated by commas or blanks, contains a need.
func listed(list, need string) bool {
	needs := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	return slices.Contains(needs, need) || slices.Contains(needs, "all")
}
