// SPDX-License-Identifier: Apache-2.0

// Package commandline parses the command line of a daemon.
package commandline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"

	"github.com/metalplug/metalplug/systemd"
)

// Parse adds the flags -log-level and -version, parses the arguments, and returns the log level. If ok is false, Parse has printed
// the help text, the version or an error, and the program must exit. The exit code is 2 after an error, and otherwise 0.
func Parse(flags *flag.FlagSet, args []string, help, version string, stdout, stderr io.Writer) (level slog.Level, code int, ok bool) {
	showVersion := flags.Bool("version", false, "print the version and exit")
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
		err = errors.New(flagErrorText.Replace(err.Error()))
	} else if level, err = systemd.ParseLevel(*levelName); err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument: %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\nSee '%[1]s --help'.\n", flags.Name(), err)
		return 0, 2, false
	}
	if *showVersion {
		fmt.Fprintf(stdout, "%s %s (%s)\n", flags.Name(), version, runtime.Version())
		return 0, 0, false
	}
	return level, 0, true
}

// flagErrorText is a replacer that gives package flag's errors the same form as metalplugctl's. A parse error is about a boolean
// flag, because all other flags are strings.
var flagErrorText = strings.NewReplacer("flag provided but not defined: -", "unknown flag: --", "bad flag syntax: ", "unknown flag: ",
	"flag needs an argument: -", "missing value: --", "boolean value ", "", " for -", " for --", "parse error", "must be true or false")
