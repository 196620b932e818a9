// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"os"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain checks that no test leaves a goroutine running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
