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

// actAsHelper runs the program as a helper and exits, if it was started as one. Otherwise, it does nothing. The program acts as a
// helper if its name is that of the helper. In the packages, metalplug-reset and metalplug-unit are scripts, and metalplugctl is
// their interpreter. The first line of a script names the helper, and the kernel then passes this name, the script's path and the
// script's arguments (execve(2)).
func actAsHelper(args []string) {
	name, arguments := filepath.Base(args[0]), args[1:]
	if len(arguments) >= 2 && arguments[1] == filepath.Join(exchange.Libexec, arguments[0]) {
		name, arguments = arguments[0], arguments[2:]
	}
	file := exchange.ConfigFile(config.DefaultFile)
	about, _ := helpTexts.ReadFile("about/" + name + ".txt")
	switch name {
	case reset.Program:
		os.Exit(exchange.Main(name, string(about), arguments, func() error { return reset.Serve(file) }))
	case unit.Program:
		serve := unit.Helper{File: file, Run: units.Run}.Serve
		if slices.Equal(arguments, []string{"--mounts"}) {
			arguments, serve = nil, func() error { return unit.Mounts(file, "/run/metalplug-mounts", "/run/cdi") }
		}
		os.Exit(exchange.Main(name, string(about), arguments, serve))
	}
}
