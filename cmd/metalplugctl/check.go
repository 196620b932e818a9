// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
)

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Read the configuration and its drop-ins and say what is wrong with them",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("one file at most, found %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			file := config.DefaultFile
			if len(args) == 1 {
				file = args[0]
			}
			c, err := config.LoadRunnable(file)
			if err != nil {
				return err
			}
			for _, f := range c.Files {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", f)
			}
			if len(c.Files) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no configuration file: the defaults hold")
			}
			return nil
		},
	}
}
