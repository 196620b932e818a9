// SPDX-License-Identifier: Apache-2.0

package helper_test

import (
	"os"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain lets no test leave anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
