// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

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

// format is how a command shows what it has found: "table", "json", or another that the command has.
type format struct {
	value string
	all   []string
}

// Set takes the value of the flag.
func (f *format) Set(value string) error {
	if !slices.Contains(f.all, value) {
		return fmt.Errorf("must be %s", f.choice())
	}
	f.value = value
	return nil
}

// choice is all values, for people.
func (f *format) choice() string {
	last := len(f.all) - 1
	return strings.Join(f.all[:last], ", ") + " or " + f.all[last]
}

// String returns the value.
func (f *format) String() string { return f.value }

// Type is the value's name in the help.
func (*format) Type() string { return "FORMAT" }

// outputFlag adds the flag -o and returns where its value is. Each command has a table and JSON.
func outputFlag(cmd *cobra.Command, more ...string) *string {
	f := &format{value: "table", all: append([]string{"table", "json"}, more...)}
	cmd.Flags().VarP(f, "output", "o", f.choice()+" (default: table)")
	cmd.Flags().Lookup("output").DefValue = ""
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(f.all, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	return &f.value
}
