// SPDX-License-Identifier: Apache-2.0

// Package leak finds resources that the tests of a package leave running or open.
package leak

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience is the maximum time for resources to end.
const patience = 10 * time.Second

// Main runs the tests of a package and returns the exit status for its TestMain. The status is also 1 if the tests leave
// open descriptors, or goroutines that run code of this module. Main prints the stacks of such goroutines.
func Main(m *testing.M) int {
	before := descriptors()
	status := m.Run()
	if status != 0 {
		return status
	}
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if left = append(stacks(), newDescriptors(before)...); len(left) == 0 {
			return 0
		}
	}
	fmt.Fprintf(os.Stderr, "%d goroutines and descriptors are left after the tests:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
	return 1
}

// descriptors returns the open descriptors of this process, except those that the Go runtime keeps for its poller.
func descriptors() []string {
	var all []string
	links, _ := filepath.Glob("/proc/self/fd/*") // if there is no procfs, no leak can be found
	for _, link := range links {
		switch name, err := os.Readlink(link); {
		case err != nil: // the descriptor of the directory itself
		case name == "anon_inode:[eventpoll]", name == "anon_inode:[eventfd]":
		default:
			all = append(all, name)
		}
	}
	return all
}

// newDescriptors returns the descriptors that are open now and were not open before.
func newDescriptors(before []string) []string {
	var all []string
	for _, name := range descriptors() {
		if !slices.Contains(before, name) {
			all = append(all, "open: "+name)
		}
	}
	return all
}

// stacks returns the stacks of all goroutines that run code of this module, except the calling one.
func stacks() []string {
	buffer := make([]byte, 16<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	var all []string
	for _, stack := range strings.Split(string(buffer), "\n\n")[1:] { // the first is this goroutine
		if strings.Contains(stack, "github.com/metalplug/metalplug/") {
			all = append(all, stack)
		}
	}
	return all
}
