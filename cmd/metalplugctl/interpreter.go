// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
	"github.com/metalplug/metalplug/daemon/unit"
	"github.com/metalplug/metalplug/systemd/units"
)

// actAsHelper runs a helper and exits if the program was started as that helper. In a build directory, the program's name is then
// that of the helper. In the packages, metalplug-reset and metalplug-unit are scripts, and metalplugctl is their interpreter. The
// first line of a script names the helper, and the kernel passes this name, the script's path and the script's arguments
// (execve(2)).
func actAsHelper(args []string) {
	name, rest := filepath.Base(args[0]), args[1:]
	if len(rest) >= 2 && filepath.Base(rest[1]) == rest[0] {
		name, rest = rest[0], rest[2:]
	}
	file := exchange.ConfigFile(config.DefaultFile)
	about, _ := helpTexts.ReadFile("about/" + name + ".txt")
	switch name {
	case reset.Program:
		os.Exit(exchange.Main(name, string(about), rest, func() error { return reset.Serve(file) }))
	case unit.Program:
		serve := unit.Helper{File: file, Run: units.Run}.Serve
		if slices.Equal(rest, []string{"--mounts"}) {
			rest, serve = nil, func() error { return unit.Mounts(file, "/run/metalplug-mounts", "/run/cdi") }
		}
		os.Exit(exchange.Main(name, string(about), rest, serve))
	}
}
