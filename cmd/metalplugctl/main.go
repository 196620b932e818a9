// SPDX-License-Identifier: Apache-2.0

// Command metalplugctl is what an operator of metalplug holds in the hand.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
)

// Exit codes.
const (
	exitOK      = 0
	exitProblem = 1
	exitUsage   = 2
)

// version is set when a release is built.
var version = "unreleased"

// usageError is a command line that makes no sense.
type usageError struct{ error }

// usage makes a [usageError].
func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)   // the second signal kills
	signal.Ignore(syscall.SIGPIPE) // a reader that has gone is an error of the write, after which all is put away
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:     "metalplugctl",
		Short:   "Look at what metalplug offers to the kubelet, and why",
		Version: version,
		Long: `Look at what metalplug offers to the kubelet, and why.

Exit codes: 0 all is well; 1 something is wrong, with the configuration too; 2 the command line makes no sense.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(args)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(previewCommand(), checkCommand())
	err := root.ExecuteContext(ctx)
	var wrongUsage usageError
	var problems config.Problems
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &problems):
		fmt.Fprintln(stderr, problems) // each begins with its file and line
		return exitProblem
	case errors.As(err, &wrongUsage), isUnknownCommand(root, args):
		fmt.Fprintf(stderr, "metalplugctl: %v\nSee 'metalplugctl --help'.\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "metalplugctl: %v\n", err)
	return exitProblem
}

// isUnknownCommand tells whether the command line names no command that there is.
func isUnknownCommand(root *cobra.Command, args []string) bool {
	_, _, err := root.Find(args)
	return err != nil
}

// noArgs refuses arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("unexpected argument %q", args[0])
	}
	return nil
}
