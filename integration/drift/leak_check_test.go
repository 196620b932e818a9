// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// unwatched are the folders with tests that are not checked for leftover processes or open files, with the reasons.
var unwatched = map[string]string{
	"integration/leak":          "its tests ask what runs, and would find the goroutine in which leak.Main has them run",
	"integration/cluster":       "a module of its own, whose TestMain fails if a process, mount, cgroup or file stays",
	"integration/devicemanager": "a module of its own, whose tests run device managers as processes and kill them at their end",
	"integration/grafana":       "a module of its own, whose tests start nothing",
}

// TestLeakChecks checks that each test package verifies that nothing is left running or open.
func TestLeakChecks(t *testing.T) {
	tested, looks := make(map[string]bool), make(map[string]bool) // keys are folders
	for _, name := range goFiles(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		folder := strings.TrimPrefix(filepath.Dir(name), "../../")
		if strings.HasSuffix(name, "_test.go") {
			tested[folder] = true
		}
		if strings.Contains(string(text), "leak.Main(m)") {
			looks[folder] = true
		}
	}
	if len(looks) == 0 {
		t.Fatal("no folder looks for leaks")
	}
	for folder := range tested {
		switch why, exempt := unwatched[folder]; {
		case !looks[folder] && !exempt:
			t.Errorf("%s has no TestMain with leak.Main", folder)
		case looks[folder] && exempt:
			t.Errorf("%s has a TestMain with leak.Main, and is said to have none: %s", folder, why)
		}
	}
	for folder := range unwatched {
		if !tested[folder] {
			t.Errorf("%s has no tests, and is exempt", folder)
		}
	}
}
