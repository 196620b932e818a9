// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLeaksAreLookedFor: after the tests of each package that is shipped, nothing may be left running or open.
func TestLeaksAreLookedFor(t *testing.T) {
	looks := make(map[string]bool) // by folder with tests
	err := filepath.WalkDir("../..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/integration/") {
			return err
		}
		text, err := os.ReadFile(name)
		folder := filepath.Dir(name)
		looks[folder] = looks[folder] || strings.Contains(string(text), "leak.Main(m)")
		return err
	})
	if err != nil || len(looks) == 0 {
		t.Fatalf("read the tests: %d folders, %v", len(looks), err)
	}
	for folder, does := range looks {
		if !does {
			t.Errorf("%s has no TestMain with leak.Main", folder)
		}
	}
}
