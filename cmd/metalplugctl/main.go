// SPDX-License-Identifier: Apache-2.0

// Command metalplugctl is what an operator of metalplug holds in the hand.
//
// It speaks only to the control socket and to files. Four rules hold for all commands: what is found is on standard
// output, in a table for people or as JSON for programs; what is wrong with the command or the daemon is on standard
// error, and ends with what to do next; the exit code tells the two apart; and nothing is changed on the machine but by
// cordon, uncordon and reset, which the daemon does.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// Exit codes.
const (
	exitOK       = 0
	exitProblem  = 1
	exitUsage    = 2
	exitNoAnswer = 3
)

// helpTexts are what --help shows of each command, before its flags.
//
//go:embed help/*.txt
var helpTexts embed.FS

// version is set when a release is built.
var version = "unreleased"

// errFound is the error of a problem that was shown.
var errFound = errors.New("a problem was found")

// usageError is a command line that makes no sense.
type usageError struct{ error }

// usage makes a [usageError].
func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// main runs the program until it is done or interrupted.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)   // the second signal kills
	signal.Ignore(syscall.SIGPIPE) // a reader that has gone is an error of the write, after which all is put away
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run carries out a command line and returns the exit code. It is main without the process, for tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "metalplugctl",
		Short:         "Show what metalplug offers to the kubelet, and why",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(args)
	o := operator{}
	root.PersistentFlags().StringVar(&o.socket, "socket", os.Getenv("METALPLUG_SOCKET"),
		"control socket of the daemon, a `PATH`")
	root.PersistentFlags().Lookup("socket").DefValue = "" // ENVIRONMENT in the man page
	valid := false                                        // the command line
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		err := noEmptyValues(cmd, args)
		valid = err == nil
		return err
	}
	root.AddCommand(previewCommand(), o.checkCommand(), o.listCommand(), o.whyCommand(), o.statusCommand(),
		o.cordonCommand(), o.uncordonCommand(), o.resetCommand(), o.adoptCommand(), o.eventsCommand(), o.watchCommand(),
		o.doctorCommand(), o.recordCommand(), o.topologyCommand())
	for _, cmd := range append(root.Commands(), root) {
		text, _ := helpTexts.ReadFile("help/" + cmd.Name() + ".txt") // a test holds that each has one
		cmd.Long, cmd.Example, _ = strings.Cut(string(text), "\nExamples:\n")
		cmd.Example = strings.TrimRight(cmd.Example, "\n")
	}
	err := root.ExecuteContext(ctx)
	if err != nil && !valid {
		err = usageError{err}
	}
	return exitCode(err, stderr)
}

// exitCode says what went wrong, if anything did, and returns the exit code for it.
func exitCode(err error, stderr io.Writer) int {
	var wrongUsage usageError
	var problems config.Problems
	var refused *api.Refused
	switch {
	case err == nil, errors.Is(err, unix.EPIPE): // the reader has seen enough
		return exitOK
	case errors.Is(err, errFound):
		return exitProblem // which was shown
	case errors.Is(err, errSilent):
		return exitNoAnswer // which was shown
	case errors.Is(err, api.ErrNoAnswer), errors.As(err, &refused) && refused.Code == api.Busy:
		fmt.Fprintf(stderr, "metalplugctl: %v\n", err)
		if refused == nil && !errors.Is(err, fs.ErrPermission) { // else it runs
			fmt.Fprintln(stderr, "See why with: systemctl status metalplugd; start it with: systemctl start metalplugd")
		}
		return exitNoAnswer
	case errors.As(err, &problems):
		fmt.Fprintln(stderr, problems) // each begins with its file and line
		return exitProblem
	case errors.As(err, &wrongUsage):
		fmt.Fprintf(stderr, "metalplugctl: %v\nSee 'metalplugctl --help'.\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "metalplugctl: %v\n", err)
	return exitProblem
}

// noEmptyValues refuses an empty argument and a flag with an empty value: a variable of a script was not set. Without the
// flag a disk would be reset that was to be erased, or another daemon would be asked. The shell completes an empty word.
func noEmptyValues(cmd *cobra.Command, args []string) (err error) {
	if slices.Contains(args, "") && cmd.Name() != cobra.ShellCompRequestCmd && cmd.Name() != cobra.ShellCompNoDescRequestCmd {
		err = usage("an argument is empty")
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() == "" {
			err = usage("--%s is empty: name something, or leave it out", f.Name)
		}
	})
	return err
}
