// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/control"
)

// redrawPause is the least time between two drawings. A person reads no faster.
const redrawPause = 100 * time.Millisecond

// watchCommand redraws the list at each change. It follows the events only to know when. Each drawing asks
// for the whole list, so that a missed event does no harm.
func (o *operator) watchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show the list of devices live",
		Long: `Show the list of devices, redrawn at each change, until it is interrupted. Where the output is no terminal, each state
follows the last one; with -o json it is an array of devices on one line.`,
		Args: cobra.NoArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var drawn time.Time
		return o.follow(cmd, false, func(_ []byte, e control.Event) error {
			if e.Time.Equal(drawn) { // the drawing at the first of several changes shows them all
				return nil
			}
			drawn = e.Time
			devices, resources, err := o.ask(cmd)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			err = show(out, *output, true, devices, func(s *screen) {
				s.devices(devices, resources, false)
				if !isTerminal(out) {
					s.WriteString("\n")
				}
			})
			select {
			case <-cmd.Context().Done():
			case <-time.After(redrawPause):
			}
			return err
		})
	}
	return cmd
}
