// SPDX-License-Identifier: Apache-2.0

// Command metalplug-reset looks at one device, resets it or erases it: one request over the socket that is its standard
// input, one answer, and it ends. The service manager starts it for each connection to metalplug-reset.socket.
package main

import (
	"os"

	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
)

const about = `looks at one device, resets it or erases it, as metalplugd asks it to, and ends.

metalplugd has it started for each request: by systemd, or by itself with [reset] socket = "direct". It has no options. To
reset or erase a device by hand, use 'metalplugctl reset'. See metalplug-reset(8).`

func main() { os.Exit(exchange.Main(reset.Program, about, reset.Serve)) }
