// SPDX-License-Identifier: Apache-2.0

// Command metalplugctl inspects and controls metalplugd.
//
// metalplugctl gets its data from the control socket, from files, and from systemctl and journalctl. Four rules apply to all
// commands. Results go to standard output, as a table or as JSON. Errors go to standard error, with a remedy at the end. The exit
// code shows whether the error is in the command line or comes from metalplugd. Only cordon, uncordon, adopt and reset change the
// node, and metalplugd makes the change.
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

// A command exits with one of these codes.
const (
	exitOK       = 0
	exitProblem  = 1
	exitUsage    = 2
	exitNoAnswer = 3
)

// helpTexts contains the help text for each command, without its flags (see [newCommand]), and a text about each helper.
//
//go:embed help/*.txt about/*.txt
var helpTexts embed.FS

// version is set at build time for releases.
var version = "unreleased"

// errFound means that the command has found a problem, and has already shown it in the output.
var errFound = errors.New("a problem was found")

// foundIf returns [errFound] if there is a problem.
func foundIf(problem bool) error {
	if problem {
		return errFound
	}
	return nil
}

// usageError is an error in the command line.
type usageError struct{ error }

// Unwrap returns the cause of the error, which may be EPIPE.
func (e usageError) Unwrap() error { return e.error }

// usageErrorf formats the text of a [usageError].
func usageErrorf(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// main runs a helper, or the command until it ends or is interrupted.
func main() {
	actAsHelper(os.Args)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)   // this lets a second signal kill the process
	signal.Ignore(syscall.SIGPIPE) // this makes a write to a closed pipe return an error, so that the command can clean up
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs a command line and returns the exit code. Tests call run instead of main.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newCommand("metalplugctl")
	root.Version = version
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(args)
	root.SetFlagErrorFunc(flagError)
	root.DisableSuggestions = true // suggestions do not fit into one line
	o := clientOptions{}
	root.PersistentFlags().StringVar(&o.socket, "socket", os.Getenv("METALPLUG_SOCKET"),
		"control socket `PATH` (default: /run/metalplug/control.sock)")
	// The help texts must not show the default, because it depends on the environment.
	root.PersistentFlags().Lookup("socket").DefValue = ""
	parsed := false // whether cobra has accepted the command line
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		parsed = true
		return checkValues(cmd, args)
	}
	root.AddCommand(previewCommand(), o.checkCommand(), o.listCommand(), o.whyCommand(), o.statusCommand(),
		o.cordonCommand(), o.uncordonCommand(), o.resetCommand(), o.adoptCommand(), o.eventsCommand(), o.watchCommand(),
		o.doctorCommand(), o.recordCommand(), o.topologyCommand())
	root.Args = nil // for the root, this makes an unknown command an error
	rejectUnknown(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !parsed {
		err = usageError{err}
	}
	return exitCode(cmd.CommandPath(), err, stderr)
}

// rejectUnknown makes an unknown argument of cobra's commands help and completion an error. Otherwise, they print a help text and
// succeed.
func rejectUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		_, rest, err := root.Find(args)
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("unexpected argument: %q", rest[0])
		}
		return err
	}
	completion, _, _ := root.Find([]string{"completion"})
	completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() } // cobra checks only the arguments of a command that can run
}

// newCommand returns a command with the texts in help/NAME.txt. The first line of this file shows how to use the command, and the
// second line describes the command. After an empty line, the help text follows, sometimes with examples.
func newCommand(name string) *cobra.Command {
	text, _ := helpTexts.ReadFile("help/" + name + ".txt") // a test checks that each command has a help text
	head, rest, _ := strings.Cut(string(text), "\n\n")
	use, short, _ := strings.Cut(head, "\n")
	long, examples, _ := strings.Cut(rest, "\nExamples:\n")
	return &cobra.Command{Use: use, Short: short, Long: long, Example: strings.TrimRight(examples, "\n"), Args: checkArguments}
}

// exitCode prints a command's error, if there is one, and returns the exit code.
func exitCode(command string, err error, stderr io.Writer) int {
	var wrongUsage usageError
	var problems config.Problems
	var refused *api.Refused
	switch {
	case err == nil, errors.Is(err, unix.EPIPE): // EPIPE means that the reader has closed the pipe
		return exitOK
	case errors.Is(err, errFound):
		return exitProblem // the output has already shown the error
	case errors.Is(err, errSilent):
		return exitNoAnswer // the output has already shown the error
	case errors.Is(err, api.ErrNoAnswer), errors.As(err, &refused) && refused.Code == api.Busy:
		fmt.Fprintf(stderr, "metalplugctl: %s\n", cleanLines(err))
		if refused == nil && !errors.Is(err, fs.ErrPermission) { // in other cases, metalplugd is running
			fmt.Fprintln(stderr, "See why with: systemctl status metalplugd; start it with: systemctl start metalplugd")
		}
		return exitNoAnswer
	case errors.As(err, &problems):
		fmt.Fprintln(stderr, cleanLines(problems)) // each problem begins with the file and line
		return exitProblem
	case errors.As(err, &wrongUsage):
		fmt.Fprintf(stderr, "metalplugctl: %s\nSee '%s --help'.\n", cleanLines(err), command)
		return exitUsage
	}
	fmt.Fprintf(stderr, "metalplugctl: %s\n", cleanLines(err))
	return exitProblem
}

// checkArguments returns an error if the number of arguments does not match the usage line of the command. In a usage line,
// brackets mark an optional argument, and dots mark an argument that may be repeated.
func checkArguments(cmd *cobra.Command, args []string) error {
	_, name, _ := strings.Cut(cmd.Use, " ")
	switch most := len(strings.Fields(name)); {
	case len(args) == 0 && most > 0 && name[0] != '[':
		return fmt.Errorf("missing argument: %s; to see all devices: metalplugctl list --all", strings.TrimSuffix(name, "..."))
	case len(args) > most && !strings.HasSuffix(name, "..."):
		return fmt.Errorf("unexpected argument: %q", args[most])
	}
	return nil
}

// checkValues returns an error if a flag has an invalid value. checkValues also returns an error if an argument or a flag's value
// is empty, because a variable in a script may be unset. If an empty flag were ignored, the command reset might not erase the
// disk, or the request might go to another metalplugd. Empty arguments are allowed when the shell completes a command line,
// because the shell may pass an empty word.
func checkValues(cmd *cobra.Command, args []string) (err error) {
	if slices.Contains(args, "") && cmd.Name() != cobra.ShellCompRequestCmd && cmd.Name() != cobra.ShellCompNoDescRequestCmd {
		err = usageErrorf("empty argument: a variable in the command may be unset")
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value, values := f.Value.String(), f.Annotations[validValues]
		switch {
		case value == "":
			err = usageErrorf("--%s is empty: set a value, or omit the flag", f.Name)
		case values != nil && !slices.Contains(values, value):
			err = usageErrorf("invalid --%s %q: must be %s", f.Name, value, config.Alternatives(values))
		}
	})
	return err
}
