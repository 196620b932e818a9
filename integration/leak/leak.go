// SPDX-License-Identifier: Apache-2.0

// Package leak finds what the tests of a package leave running.
package leak

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience is how long what was told to end may take to do so.
const patience = 10 * time.Second

// Main runs the tests of a package and returns the exit status for its TestMain: 1 also if goroutines are left that run
// code of this module, whose stacks it prints.
func Main(m *testing.M) int {
	status := m.Run()
	if status != 0 {
		return status
	}
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if left = stacks(); len(left) == 0 {
			return 0
		}
	}
	fmt.Fprintf(os.Stderr, "%d goroutines are left after the tests:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
	return 1
}

// stacks returns the stacks of the goroutines that run code of this module, but for the one that asks.
func stacks() []string {
	buffer := make([]byte, 16<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	var all []string
	for _, stack := range strings.Split(string(buffer), "\n\n")[1:] { // the first is our own
		if strings.Contains(stack, "github.com/metalplug/metalplug/") {
			all = append(all, stack)
		}
	}
	return all
}
