//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"maps"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// TestRetries checks which tests run again. A test that failed without a kernel crash must run again only on request.
func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name           string
		passed, failed []string
		crashed        map[string]bool
		asked          bool
		skip           string
		again          bool
	}{
		{name: "all passed", passed: []string{"TestA"}, skip: "^TestA$"},
		{name: "failed", passed: []string{"TestA"}, failed: []string{"TestB"}},
		{name: "crashed", passed: []string{"TestA", "TestC"}, failed: []string{"TestB"}, crashed: map[string]bool{"TestB": true}, skip: "^TestA$|^TestC$", again: true},
		{name: "failed, and asked for", asked: true, passed: []string{"TestA"}, failed: []string{"TestB"}, skip: "^TestA$", again: true},
		{name: "passed, and asked for", asked: true, passed: []string{"TestA"}, skip: "^TestA$"},
		{name: "crashed, and failed", failed: []string{"TestB", "TestC"}, crashed: map[string]bool{"TestB": true}},
		{name: "failed in one machine", asked: true, passed: []string{"TestA/SELinux"}, failed: []string{"TestA/AppArmor"}, skip: "^TestA$/^SELinux$", again: true},
		{name: "only crashed", failed: []string{"TestB"}, crashed: map[string]bool{"TestB": true}, skip: "", again: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := outcome{passed: c.passed, failed: c.failed, crashed: maps.Clone(c.crashed)}
			if skip, again := o.skip(c.asked); skip != c.skip || again != c.again {
				t.Errorf("%q, %t", skip, again)
			}
		})
	}
	o := outcome{crashed: make(map[string]bool)}
	o.recordPanic(t, "[ 12.3] Kernel panic - not syncing: Fatal exception in interrupt")
	if !o.crashed[t.Name()] {
		t.Error("a panic is not seen")
	}
}
