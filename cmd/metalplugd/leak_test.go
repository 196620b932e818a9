// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
)

// childEnv makes the test's own program metalplugd.
const childEnv = "METALPLUGD_TEST_CHILD"

// TestMain: no test leaves anything running.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
	}
	os.Exit(leak.Main(m))
}
