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
)

// Exit codes.
const (
	exitOK      = 0
	exitProblem = 1
	exitUsage   = 2
)

// version is set when a release is built.
var version = "unreleased"

// errUsage marks a command line that makes no sense.
var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "metalplugctl",
		Short:         "Look at what metalplug offers to the kubelet, and why",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(args)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	root.AddCommand(previewCommand(), checkCommand())
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUsage), isUnknownCommand(root, args):
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
		return fmt.Errorf("%w: unexpected argument %q", errUsage, args[0])
	}
	return nil
}
