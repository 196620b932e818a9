// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"os"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain fails if a test leaves a goroutine running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
