// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/udev/recording"
)

// textFlag adds a flag with a text, which is value without it. The usage has the name of the value in backquotes, and what holds
// without the flag. The shell completes the values.
func textFlag(cmd *cobra.Command, name, value, usage string, values ...string) *string {
	text := cmd.Flags().String(name, value, usage)
	cmd.Flags().Lookup(name).DefValue = "" // the usage has it
	if len(values) > 0 {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveDefault)) // the flag is there
	}
	return text
}

// configFlag adds the flag --config and returns where its value is.
func configFlag(cmd *cobra.Command) *string {
	return textFlag(cmd, "config", config.DefaultFile, "configuration `FILE` (default: the daemon's)")
}

// recordingFlag adds the flag --recording and returns where its value is.
func recordingFlag(cmd *cobra.Command) *string {
	var names []string
	for _, r := range recording.Bundled() {
		names = append(names, r.Name+"\t"+r.Title)
	}
	return textFlag(cmd, "recording", "", "recorded machine, by `FILE` or bundled name", names...)
}

// onceFlag adds the flag --once and returns where its value is.
func onceFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("once", false, "print one state and end, as without a terminal")
}

// format is how a command shows what it has found: "table" or "json".
type format string

// Set takes the value of the flag.
func (f *format) Set(value string) error {
	if value != "table" && value != "json" {
		return errors.New("must be table or json")
	}
	*f = format(value)
	return nil
}

// String returns the value.
func (f *format) String() string { return string(*f) }

// Type is the value's name in the help.
func (*format) Type() string { return "FORMAT" }

// outputFlag adds the flag -o and returns where its value is.
func outputFlag(cmd *cobra.Command) *format {
	output := format("table")
	cmd.Flags().VarP(&output, "output", "o", "table or json (default: table)")
	cmd.Flags().Lookup("output").DefValue = ""
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return &output
}
