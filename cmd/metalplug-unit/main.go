// SPDX-License-Identifier: Apache-2.0

// Command metalplug-unit runs one vendor unit for metalplugd. The command's standard input is a socket. The command reads one
// request from this socket, sends one answer, and exits. The command needs no capabilities, but it must run as root, because
// systemd accepts requests only from uid 0.
package main

import (
	"fmt"
	"os"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/unit"
	"github.com/metalplug/metalplug/systemd/units"
)

const about = `runs a unit of [resource.units] for metalplugd, and ends.

systemd starts it for each request, or metalplugd with [reset] units = "direct". It has one option, for
metalplug-mounts.service: --mounts. See metalplugd(8).`

func main() {
	file := exchange.ConfigFile(config.DefaultFile)
	if len(os.Args) == 2 && os.Args[1] == "--mounts" {
		if err := unit.Mounts(file, "/run/metalplug-mounts", "/run/cdi"); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", unit.Program, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(exchange.Main(unit.Program, about, unit.Helper{File: file, Run: units.Run}.Serve))
}
