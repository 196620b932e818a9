//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// outcome is how the tests of a run have ended that booted a machine.
type outcome struct {
	mu      sync.Mutex
	passed  []string
	failed  []string
	crashed map[string]bool // those whose machine's kernel has panicked
	saw     []string        // how things stood when a step had failed
}

// told is that of this run.
var told = outcome{crashed: make(map[string]bool)}

// note notes how a test has ended.
func (o *outcome) note(t *testing.T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.Failed() {
		o.failed = append(o.failed, t.Name())
	} else {
		o.passed = append(o.passed, t.Name())
	}
}

// keep keeps how things stood when a step had failed.
func (o *outcome) keep(step, account string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.saw = append(o.saw, fmt.Sprintf("=== when %s had failed:\n%s", step, account))
}

// panicked looks for the end of the kernel in what a machine has said last.
func (o *outcome) panicked(t testing.TB, console string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if strings.Contains(console, "Kernel panic - not syncing") {
		o.crashed[t.Name()] = true
	}
}

// skip is a pattern of the tests that need not be told again, where there are
// others of which each has failed because its machine's kernel crashed.
func (o *outcome) skip() (pattern string, again bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range o.failed {
		if !o.crashed[name] {
			return "", false
		}
	}
	quoted := make([]string, len(o.passed))
	for i, name := range o.passed {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return "^(" + strings.Join(quoted, "|") + ")$", len(o.failed) > 0
}

// Main runs the tests of a package. The emulator has the guest's kernel crash
// once in many hours, in the middle of anything, when an interrupt meets code
// that the kernel has just patched. That says nothing of what was tested: such a
// test is told once more, on a new machine, and that is said. What has failed in
// any other way has failed. Last of all, where the end of a long log is read first,
// it prints how things stood in a machine when a step had failed.
func Main(m *testing.M) {
	code := m.Run()
	for _, account := range told.saw {
		fmt.Println(account)
	}
	skip, again := told.skip()
	if code == 0 || !again || os.Getenv(secondRun) != "" {
		os.Exit(code)
	}
	fmt.Printf("=== the kernel of a machine has crashed: all but %s is told again\n", skip)
	c := exec.Command(os.Args[0], append(os.Args[1:], "-test.skip="+skip)...)
	c.Stdout, c.Stderr, c.Env = os.Stdout, os.Stderr, append(os.Environ(), secondRun+"=1")
	if err := c.Run(); err != nil {
		fmt.Println(err)
		os.Exit(code)
	}
	os.Exit(0)
}

// secondRun is in the environment of a run that tells tests again.
const secondRun = "METALPLUG_VM_SECOND_RUN"
