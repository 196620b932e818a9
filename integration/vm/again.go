//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
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

// skip returns a pattern of the tests that passed, which need not run again. It reports again if others are to run once
// more, because their machine's kernel crashed or because asked is set.
func (o *outcome) skip(asked bool) (pattern string, again bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range o.failed {
		if !asked && !o.crashed[name] {
			return "", false
		}
	}
	quoted := make([]string, len(o.passed))
	for i, name := range o.passed {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return "^(" + strings.Join(quoted, "|") + ")$", len(o.failed) > 0
}

// Main runs the tests of a package and checks for processes and files that they leave. The emulator lets the guest's
// kernel crash once in many hours, at any point, when an interrupt meets code that the kernel has just patched. Such a
// crash is not a result of the test. Main runs the test once more, on a new machine, and prints that. A test that has
// failed in any other way has failed, unless METALPLUG_VM_AGAIN is set. Then Main runs it once more as well, and calls it
// flaky if it passes. At the end, which readers of a long log see first, Main prints the state of the machine when a step
// failed.
func Main(m *testing.M) {
	code := leak.Main(m)
	skip, again := told.skip(os.Getenv("METALPLUG_VM_AGAIN") != "")
	if code == 0 || !again || os.Getenv(secondRun) != "" {
		told.print(os.Stdout)
		os.Exit(code)
	}
	fmt.Printf("=== %s: all but %s is told again\n", told.failures(), skip)
	c := exec.Command(os.Args[0], append(os.Args[1:], "-test.skip="+skip)...)
	c.Stdout, c.Stderr, c.Env = os.Stdout, os.Stderr, append(os.Environ(), secondRun+"=1")
	err := c.Run()
	told.print(os.Stdout)
	if err != nil {
		fmt.Println(err)
		os.Exit(code)
	}
	fmt.Printf("=== FLAKY: %s, and passed on a new machine\n", told.failures())
	os.Exit(0)
}

// failures lists the tests that have failed, and how.
func (o *outcome) failures() string {
	var all []string
	for _, name := range o.failed {
		how := " failed"
		if o.crashed[name] {
			how = "'s machine crashed"
		}
		all = append(all, name+how)
	}
	return strings.Join(all, ", ")
}

// print writes what was kept of the steps that have failed.
func (o *outcome) print(w io.Writer) {
	for _, account := range o.saw {
		fmt.Fprintln(w, account)
	}
}

// secondRun is in the environment of a run that tells tests again.
const secondRun = "METALPLUG_VM_SECOND_RUN"
