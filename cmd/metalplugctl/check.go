// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/systemd"
)

// checkCommand reads the configuration as the daemon does and says all that is wrong with it. A file can be
// checked on another machine: a unit that this one lacks is no more than a warning. Only with --explain are devices
// looked at, those of this machine.
func (o *operator) checkCommand() *cobra.Command {
	var explain bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Read the configuration and its drop-ins and say what is wrong with them",
		Long: `Read the configuration and its drop-ins and say what is wrong with them, each with file and line. Without a FILE it is
/etc/metalplug/metalplug.toml. Where systemd runs, units of the configuration that it does not know are warned of.

With --explain it also says which of the devices that are present each resource would take: which ones an earlier
resource takes from it, and which resources take nothing. No daemon is needed for that.`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().BoolVar(&explain, "explain", false, "say which devices of this machine each resource would take")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		checked := checkedFiles{File: config.DefaultFile}
		if len(args) == 1 {
			checked.File = args[0]
		}
		c, err := config.Load(checked.File)
		if err == nil {
			err = c.Check()
		}
		if err != nil {
			return err
		}
		checked.Files = append([]string{}, c.Files...)
		checked.Warnings = systemd.Units{}.Complaints(cmd.Context(), c.Templates()...)
		if explain {
			if checked.Resources, err = takings(c); err != nil {
				return err
			}
		}
		return show(cmd.OutOrStdout(), *output, false, checked, func(s *screen) { s.checked(checked) })
	}
	return cmd
}

// checkedFiles is a configuration with which nothing is wrong.
type checkedFiles struct {
	File      string   `json:"file"` // the main one, whether it is there or not
	Files     []string `json:"files"`
	Warnings  []string `json:"warnings,omitempty"`  // what this machine lacks
	Resources []taking `json:"resources,omitempty"` // what each would take, if that was asked for
}

// checked writes the files, and what the resources would take.
func (s *screen) checked(c checkedFiles) {
	for _, f := range c.Files {
		fmt.Fprintf(s, "%s: ok\n", f)
	}
	if len(c.Files) == 0 {
		fmt.Fprintf(s, "%s: not there: the defaults hold\n", c.File)
	}
	for _, text := range c.Warnings {
		s.line("warning: ", yellow, text)
	}
	for _, r := range c.Resources {
		s.WriteString("\n")
		s.taking(r)
	}
}
