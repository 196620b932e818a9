// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"os"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain: no test leaves anything running. With [crowdEnv] the process is many clients.
func TestMain(m *testing.M) {
	if path := os.Getenv(crowdEnv); path != "" {
		beCrowd(path)
		return
	}
	os.Exit(leak.Main(m))
}
