// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/udev/recording"
)

// textFlag adds a flag with a text value. The parameter letter is the short name of the flag, or empty. The parameter value is
// the default. The usage text must contain the default. It must also contain the name of the value in backquotes. The shell
// offers the given values as completions for the flag.
func textFlag(cmd *cobra.Command, name, letter, value, usage string, values ...string) *string {
	text := cmd.Flags().StringP(name, letter, value, usage)
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
	return textFlag(cmd, "config", "", config.DefaultFile, "configuration `FILE` (default: the daemon's)")
}

// recordingFlag adds the flag --recording and returns its value.
func recordingFlag(cmd *cobra.Command) *string {
	var names []string
	for _, r := range recording.Bundled() {
		names = append(names, r.Name+"\t"+r.Title)
	}
	return textFlag(cmd, "recording", "", "", "recorded machine, by `FILE` or bundled name", names...)
}

// onceFlag adds the flag --once and returns its value.
func onceFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("once", false, "print the state once and exit")
}

// fixed is the annotation of a flag that accepts only a fixed set of values. The annotation lists these values.
const fixed = "fixed"

// choiceFlag adds a flag with a fixed set of values, as [textFlag] does. It adds the default to the usage text.
func choiceFlag(cmd *cobra.Command, name, letter, value, usage string, values ...string) *string {
	if value != "" {
		usage += " (default: " + value + ")"
	}
	text := textFlag(cmd, name, letter, value, usage, values...)
	_ = cmd.Flags().SetAnnotation(name, fixed, values) // fails only for an unknown flag
	return text
}

// outputFlag adds the flag -o and returns its value. The value may be table, json, or one of the additional values.
func outputFlag(cmd *cobra.Command, more ...string) *string {
	all := append([]string{"table", "json"}, more...)
	return choiceFlag(cmd, "output", "o", "table", "output `FORMAT`: "+config.Alternatives(all), all...)
}
