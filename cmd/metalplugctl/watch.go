// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
)

// redrawPause is the least time between two drawings. A person reads no faster.
const redrawPause = 100 * time.Millisecond

// watchCommand redraws the list at each change. It follows the events only to know when. Each drawing asks
// for the whole list, so that a missed event does no harm.
func (o *operator) watchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show the list of devices live",
		Args:  cobra.NoArgs,
	}
	output, once := outputFlag(cmd), onceFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return live(cmd, *output, *once, func(v *view) error {
			follow := v != nil || *output == "json" && !*once
			return o.eachState(cmd, follow, func(devices []api.Device, resources []api.Resource) error {
				v.forget() // that the daemon did not answer
				return v.show(cmd.OutOrStdout(), *output, true, devices, func(s *screen) { s.watched(devices, resources) })
			})
		})
	}
	return cmd
}

// live calls run with a view, or with nil where the output is not for one.
func live(cmd *cobra.Command, output string, once bool, run func(*view) error) error {
	if once || output == "json" || !isLive(cmd.OutOrStdout()) {
		return run(nil)
	}
	return inView(cmd, func(ctx context.Context, v *view) error {
		cmd.SetContext(ctx)
		return run(v)
	})
}

// eachState calls draw once, or if follow at once and at each change until the command ends.
func (o *operator) eachState(cmd *cobra.Command, follow bool, draw func([]api.Device, []api.Resource) error) error {
	state := func() error {
		devices, resources, err := o.ask(cmd)
		if err != nil {
			return err
		}
		return draw(devices, resources)
	}
	if !follow {
		return state()
	}
	var drawn time.Time
	return o.follow(cmd, false, func(_ []byte, e api.Event) error {
		if e.Time.Equal(drawn) { // the drawing at the first of several changes shows them all
			return nil
		}
		drawn = e.Time
		err := state()
		select {
		case <-cmd.Context().Done():
		case <-time.After(redrawPause):
		}
		return err
	})
}

// watched writes how the resources stand, and the devices.
func (s *screen) watched(devices []api.Device, resources []api.Resource) {
	s.standings(resources)
	s.WriteString("\n")
	s.devices(urgent(devices), resources, false)
}
