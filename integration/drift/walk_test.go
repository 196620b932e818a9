// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"os"
	"regexp"
	"testing"
)

// TestWalk checks that each function in docs/architecture.md is in the file that the page gives for it.
func TestWalk(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("(?m)^\\| \\d+ \\| `([^`]+)` `([^`]+)` \\|").FindAllStringSubmatch(string(page), -1)
	if len(steps) == 0 || len(steps) > 12 {
		t.Errorf("%d functions, at most 12", len(steps))
	}
	for _, s := range steps {
		source, err := os.ReadFile("../../" + s[1])
		if err != nil || !regexp.MustCompile(`(?m)^func (\([^)]*\) )?`+s[2]+`\(`).MatchString(string(source)) {
			t.Errorf("%s has no function %s: %v", s[1], s[2], err)
		}
	}
}
