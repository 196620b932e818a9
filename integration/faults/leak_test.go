// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// resources are counts that must not grow in a process.
type resources struct{ goroutines, descriptors int }

// inUse returns the counts of this process. It ignores the goroutines of running tests and of the runtime.
func inUse(t *testing.T) resources {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return resources{len(stacks()), len(entries)}
}

// stacks returns the stacks of the goroutines that run indefinitely.
func stacks() []string {
	buffer := make([]byte, 64<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	var all []string
	for _, stack := range strings.Split(string(buffer), "\n\n") {
		if !strings.Contains(stack, "testing.") && !strings.Contains(stack, "runtime.ReadTrace") && !strings.Contains(stack, "os/signal") {
			all = append(all, stack)
		}
	}
	return all
}

// noLeaks checks that at the end of a test no more resources are in use than now. Parallel tests must not call it.
func noLeaks(t *testing.T) {
	t.Helper()
	before := inUse(t)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		if err := noMoreThan(t, before); err != nil {
			t.Errorf("%v:\n%s", err, strings.Join(stacks(), "\n\n"))
		}
	})
}

// noMoreThan waits until no more resources are in use than before.
func noMoreThan(t *testing.T, before resources) error {
	t.Helper()
	return eventually(func() error {
		if now := inUse(t); now.goroutines > before.goroutines || now.descriptors > before.descriptors {
			return fmt.Errorf("in use are %+v instead of %+v", now, before)
		}
		return nil
	})
}
