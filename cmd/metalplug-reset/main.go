// SPDX-License-Identifier: Apache-2.0

// Command metalplug-reset reads a disk, resets a device, or erases a disk. The command's standard input is a socket. The command
// reads one request from this socket, sends one answer, and exits. systemd starts the command for each connection to
// metalplug-reset.socket.
package main

import (
	"os"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
)

const about = `reads one disk, resets one device or erases it for metalplugd, and ends.

systemd starts it for each request; with [reset] socket = "direct" metalplugd does. It resets and erases only devices that a
resource of the configuration selects, by the method that the resource names.

It has no options. To reset or erase a device manually, use 'metalplugctl reset'. See metalplug-reset(8).`

func main() {
	file := exchange.ConfigFile(config.DefaultFile)
	os.Exit(exchange.Main(reset.Program, about, func() error { return reset.Serve(file) }))
}
