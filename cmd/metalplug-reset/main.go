// SPDX-License-Identifier: Apache-2.0

// Command metalplug-reset looks at one device, resets it or erases it: one request over the socket that is its standard
// input, one answer, and it ends. The service manager starts it for each connection to metalplug-reset.socket.
package main

import (
	"fmt"
	"os"

	"github.com/metalplug/metalplug/daemon/reset"
)

func main() {
	if err := reset.Serve(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", reset.Program, err)
		os.Exit(1)
	}
}
