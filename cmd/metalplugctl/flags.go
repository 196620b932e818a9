// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/udev/recording"
)

// textFlag adds a flag with a text value. The parameter value is the default. The usage text must contain the default, and the
// name of the value in backquotes. The shell offers the given values as completions for the flag.
func textFlag(cmd *cobra.Command, name, value, usage string, values ...string) *string {
	text := cmd.Flags().String(name, value, usage)
	// The usage text already contains the default.
	cmd.Flags().Lookup(name).DefValue = ""
	if len(values) > 0 {
		// fails only for an unknown flag
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveDefault))
	}
	return text
}

// configFlag adds the flag --config and returns its value.
func configFlag(cmd *cobra.Command) *string {
	return textFlag(cmd, "config", config.DefaultFile, "configuration `FILE` (default: the daemon's)")
}

// recordingFlag adds the flag --recording and returns its value.
func recordingFlag(cmd *cobra.Command) *string {
	var names []string
	for _, r := range recording.Bundled() {
		names = append(names, r.Name+"\t"+r.Title)
	}
	return textFlag(cmd, "recording", "", "recorded machine, by `FILE` or bundled name", names...)
}

// onceFlag adds the flag --once and returns its value.
func onceFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("once", false, "print the state once and exit")
}

// choice is the value of a flag with a fixed set of values.
type choice struct {
	value string
	all   []string
	of    string // name of the value in the help text
}

// Set sets the value of the flag.
func (c *choice) Set(value string) error {
	if !slices.Contains(c.all, value) {
		return fmt.Errorf("must be %s", config.Alternatives(c.all))
	}
	c.value = value
	return nil
}

// String returns the value.
func (c *choice) String() string { return c.value }

// Type returns the name of the value in the help text.
func (c *choice) Type() string { return c.of }

// choiceFlag adds a flag with a fixed set of values. The parameter letter is the short name of the flag, or empty. The parameter
// named of contains the name of the value in the help text, and value is the default.
func choiceFlag(cmd *cobra.Command, name, letter, of, value, usage string, values ...string) *string {
	c := &choice{value: value, all: values, of: of}
	if value != "" {
		usage += " (default: " + value + ")"
	}
	cmd.Flags().VarP(c, name, letter, usage)
	cmd.Flags().Lookup(name).DefValue = ""
	// fails only for an unknown flag
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	return &c.value
}

// outputFlag adds the flag -o and returns its value. The value may be table, json, or one of the additional values.
func outputFlag(cmd *cobra.Command, more ...string) *string {
	all := append([]string{"table", "json"}, more...)
	return choiceFlag(cmd, "output", "o", "FORMAT", "table", config.Alternatives(all), all...)
}
