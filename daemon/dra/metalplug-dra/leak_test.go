// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain checks that no test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
