// SPDX-License-Identifier: Apache-2.0

// Package commandline parses the command line of a daemon.
package commandline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/metalplug/metalplug/systemd"
)

// Parse adds the flag -log-level, parses the arguments, and returns the log level. If the program must exit, ok is false. Parse
// has then printed the help text or the error. The exit code is 0 after the help text and 2 after an error.
func Parse(flags *flag.FlagSet, args []string, help string, stdout, stderr io.Writer) (level slog.Level, code int, ok bool) {
	levelName := flags.String("log-level", "info", "minimum `LEVEL` of log messages: debug, info, notice, warn, error")
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, help)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return 0, 0, false
	}
	if err != nil {
		err = errors.New(plainly.Replace(err.Error()))
	} else if level, err = systemd.ParseLevel(*levelName); err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument: %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\nSee '%[1]s --help'.\n", flags.Name(), err)
		return 0, 2, false
	}
	return level, 0, true
}

// plainly rewrites the errors of the package flag in the form that metalplugctl uses. Only a boolean flag can have an invalid value.
var plainly = strings.NewReplacer("flag provided but not defined: -", "unknown flag: --", "bad flag syntax: ", "unknown flag: ",
	"flag needs an argument: -", "missing value: --", "boolean value ", "", " for -", " for --", "parse error", "must be true or false")
