// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/udev/recording"
)

// stringFlag adds a flag with a text value. The parameter letter is the short name of the flag, or empty. The parameter value is
// the default. The usage text must contain the default, and the value's name in backquotes. The shell offers the given values as
// completions for the flag.
func stringFlag(cmd *cobra.Command, name, letter, value, usage string, values ...string) *string {
	text := cmd.Flags().StringP(name, letter, value, usage)
	// The usage text already contains the default.
	cmd.Flags().Lookup(name).DefValue = ""
	// an error would mean an unknown flag
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveDefault))
	return text
}

// configFlag adds the flag --config and returns its value.
func configFlag(cmd *cobra.Command) *string {
	return stringFlag(cmd, "config", "", config.DefaultFile, "configuration `FILE` (default: the daemon's)")
}

// recordingFlag adds the flag --recording and returns its value.
func recordingFlag(cmd *cobra.Command) *string {
	var names []string
	for _, r := range recording.Bundled() {
		names = append(names, r.Name+"\t"+r.Title)
	}
	return stringFlag(cmd, "recording", "", "", "recorded machine, by `FILE` or bundled name", names...)
}

// onceFlag adds the flag --once and returns its value.
func onceFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("once", false, "print the state once and exit")
}

// validValues is the annotation of a flag that accepts only a fixed set of values. The annotation lists these values.
const validValues = "fixed"

// choiceFlag adds a flag with a fixed set of values, as [stringFlag] does. choiceFlag adds the default to the usage text.
func choiceFlag(cmd *cobra.Command, name, letter, value, usage string, values ...string) *string {
	if value != "" {
		usage += " (default: " + value + ")"
	}
	text := stringFlag(cmd, name, letter, value, usage, values...)
	_ = cmd.Flags().SetAnnotation(name, validValues, values) // an error would mean an unknown flag
	return text
}

// outputFlag adds the flag -o and returns its value. The value may be table, json, or one of the additional values.
func outputFlag(cmd *cobra.Command, more ...string) *string {
	all := append([]string{"table", "json"}, more...)
	return choiceFlag(cmd, "output", "o", "table", "output `FORMAT`: "+config.Alternatives(all), all...)
}

// flagError returns the error for a flag that pflag cannot parse. pflag accepts any value of a flag that is not boolean.
func flagError(cmd *cobra.Command, err error) error {
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		value, _ := pflag.UnquoteUsage(missing.GetFlag())
		return fmt.Errorf("missing value: --%s %s", missing.GetFlag().Name, value)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("invalid --%s %q: must be true or false", invalid.GetFlag().Name, invalid.GetValue())
	}
	_, name, _ := strings.Cut(err.Error(), " -") // every other error's text ends with the flag
	return fmt.Errorf("unknown flag %q for %q", "-"+name, cmd.CommandPath())
}

// clientOptions contains the options that are common to all commands that connect to metalplugd.
type clientOptions struct {
	socket string // value of the flag --socket, or empty for the socket in the configuration
}

// client returns a client for the socket in the flag --socket, or else in the default configuration file.
func (o *clientOptions) client() api.Client {
	_, c := o.loadConfig(config.DefaultFile)
	return c
}

// loadConfig returns the configuration in a file, or the defaults if the file contains errors. The client uses the socket in
// the flag --socket, or else in this configuration.
func (o *clientOptions) loadConfig(file string) (config.Config, api.Client) {
	c, err := config.Load(file)
	if err != nil {
		c = config.Default()
	}
	return c, api.Client{Socket: cmp.Or(o.socket, filepath.Join(c.Paths.Run, "control.sock"))}
}

// deviceIDs returns the device IDs that the shell offers as completions of an argument. The result is empty if the command
// accepts no further argument. For uncordon, the result contains cordoned devices only.
func (o *clientOptions) deviceIDs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var devices []api.Device
	if cmd.ValidateArgs(append(slices.Clone(args), "x")) != nil || o.client().Get(cmd.Context(), "/v1/devices", &devices) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, d := range devices {
		if d.ID != "" && !slices.Contains(args, d.ID) && (cmd.Name() != "uncordon" || d.Cordoned) {
			ids = append(ids, fmt.Sprintf("%s\t%s", d.ID, d.Resource))
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
