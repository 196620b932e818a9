// SPDX-License-Identifier: Apache-2.0

// Command metalplugd offers this node's devices to the kubelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/metalplug/metalplug/daemon"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/internal/commandline"
	"github.com/metalplug/metalplug/systemd"
	"github.com/metalplug/metalplug/systemd/sockets"
	"github.com/metalplug/metalplug/systemd/unitfile"
)

// The program exits with one of these codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitConfig = 78 // EX_CONFIG in sysexits.h; systemd does not restart the unit after this code
)

// version is set at build time for releases.
var version = "unreleased"

const help = `metalplugd offers the devices of this machine to the kubelet until it is stopped.

SIGHUP reloads the configuration. An invalid one changes nothing. A valid one affects only the resources that changed.
Drop-ins (conf.d/*.toml next to the configuration file) are read after it, in the order of their names.

Exit codes: 0 success; 1 a part failed; 2 invalid command line; 78 invalid configuration.

`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("metalplugd", flag.ContinueOnError)
	file := flags.String("config", config.DefaultFile, "configuration `FILE`; the default one may be missing")
	check := flags.Bool("check", false, "check the configuration and exit")
	preview := flags.Bool("preview", false, "serve metalplugctl preview, which sends its options on standard input; change no device")
	level, code, ok := commandline.Parse(flags, args, help, version, stdout, stderr)
	if !ok {
		return code
	}
	load := config.Load // daemon.Run opens the recording
	if *check {
		load = config.LoadUsable
	}
	loaded, err := load(*file)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitConfig
	}
	if *check {
		return printProblems(loaded, stderr)
	}
	log := systemd.OpenLog(stderr, level)
	defer log.Close()
	plugin.LogTo(log.Logger)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)   // this lets a second signal kill the process
	signal.Ignore(syscall.SIGPIPE) // the daemon must continue even if nothing reads its log
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	if *preview {
		if err := daemon.Preview(ctx, daemon.Options{Config: loaded, Log: log.Logger, Version: version}, os.Stdin, stdout); err != nil {
			fmt.Fprintf(stderr, "metalplugd: %v\n", err)
			return exitFailed
		}
		return exitOK
	}
	absolute, _ := filepath.Abs(*file) // Abs fails only if the working directory was removed, in which case the file was not read
	err = daemon.Run(ctx, daemon.Options{
		Config:  loaded,
		File:    absolute,
		Load:    func() (config.Config, error) { return config.LoadUsable(*file) },
		Reload:  hangup,
		Log:     log.Logger,
		Sockets: sockets.Passed(),
		Version: version,
	})
	if problems, ok := errors.AsType[config.Problems](err); ok {
		fmt.Fprintln(stderr, problems)
		return exitConfig
	}
	if err != nil {
		log.Error("stopped", "err", err)
		return exitFailed
	}
	return exitOK
}

// printProblems prints problems with CDI and vendor units, which even a valid configuration may have, and returns the exit code.
func printProblems(c config.Config, stderr io.Writer) int {
	if err := daemon.CheckCDI(c); err != nil { // "systemctl reload" runs this check inside the sandbox
		fmt.Fprintln(stderr, err)
		return exitConfig
	}
	for _, text := range unitfile.Complaints(c.Templates()...) {
		fmt.Fprintf(stderr, "warning: %s\n", text)
	}
	return exitOK
}
