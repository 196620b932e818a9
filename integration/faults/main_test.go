// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain runs the daemon if the environment requests it, otherwise the tests. The recorded hardware is in memory if
// possible, because it consists of thousands of small files.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := beDaemon(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("TMPDIR") == "" && unix.Access("/dev/shm", unix.W_OK) == nil {
		os.Setenv("TMPDIR", "/dev/shm")
	}
	os.Exit(leak.Main(m))
}
