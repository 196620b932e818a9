//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"flag"
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

// outcome has the results of the tests of a run that booted machines.
type outcome struct {
	mu      sync.Mutex
	passed  []string
	failed  []string
	crashed map[string]bool // tests whose machine had a kernel panic
	saw     []string        // states of machines after a failed step
}

// told has the outcome of this run.
var told = outcome{crashed: make(map[string]bool)}

// note records the result of a test.
func (o *outcome) note(t *testing.T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.Failed() {
		o.failed = append(o.failed, t.Name())
	} else {
		o.passed = append(o.passed, t.Name())
	}
}

// keep stores the state of a machine after a failed step.
func (o *outcome) keep(step, account string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.saw = append(o.saw, fmt.Sprintf("=== when %s had failed:\n%s", step, account))
}

// recordPanic records a kernel panic if the last console output of a machine shows one.
func (o *outcome) recordPanic(t testing.TB, console string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if strings.Contains(console, "Kernel panic - not syncing") {
		o.crashed[t.Name()] = true
	}
}

// skip returns a pattern of the tests that passed, which need not run again. again reports whether the other tests must run
// again. This is the case if the kernel of their machine crashed, or if asked is true.
func (o *outcome) skip(asked bool) (pattern string, again bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range o.failed {
		if !asked && !o.crashed[name] {
			return "", false
		}
	}
	patterns := make([]string, len(o.passed))
	for i, name := range o.passed {
		// Between slashes, go test compares each part of a name with its own pattern.
		patterns[i] = "^" + strings.ReplaceAll(regexp.QuoteMeta(name), "/", "$/^") + "$"
	}
	return strings.Join(patterns, "|"), len(o.failed) > 0
}

// Main runs the tests of a package and checks for leftover processes and files. In the emulator the guest's kernel crashes
// about once in many hours, when an interrupt hits code that the kernel has just patched. Such a crash is not a result of
// the test. Main then runs the test again on a new machine, and prints a note. If METALPLUG_VM_AGAIN is set, Main also
// repeats tests that failed for other reasons. If such a test passes, Main reports it as flaky. Main prints the state of the
// machine after a failed step at the end, because readers of a long log see the end first.
func Main(m *testing.M) {
	code := leak.Main(m)
	skip, again := told.skip(os.Getenv("METALPLUG_VM_AGAIN") != "")
	if code == 0 || !again || os.Getenv(secondRun) != "" {
		told.print(os.Stdout)
		os.Exit(code)
	}
	fmt.Printf("=== %s: all but %s is told again\n", told.failures(), skip)
	c := exec.Command(os.Args[0], append(os.Args[1:], "-test.skip="+strings.Trim(skip+"|"+flag.Lookup("test.skip").Value.String(), "|"))...)
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

// failures lists the failed tests, each with its kind of failure.
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

// print writes the stored states after failed steps.
func (o *outcome) print(w io.Writer) {
	for _, account := range o.saw {
		fmt.Fprintln(w, account)
	}
}

// secondRun is an environment variable of a run that repeats tests.
const secondRun = "METALPLUG_VM_SECOND_RUN"
