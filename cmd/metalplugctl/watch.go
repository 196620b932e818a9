// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
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
		Args:  cobra.NoArgs,
	}
	output, once := outputFlag(cmd), onceFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		out := cmd.OutOrStdout()
		switch {
		case *once || *output != "json" && !isLive(out):
			return o.redraw(cmd, *output, nil)
		case *output == "json":
			return o.eachState(cmd, func() error { return o.redraw(cmd, *output, nil) })
		}
		return inView(cmd, func(ctx context.Context, v *view) error {
			cmd.SetContext(ctx)
			return o.eachState(cmd, func() error { return o.redraw(cmd, *output, v) })
		})
	}
	return cmd
}

// eachState calls draw at once, and at each change until the command ends.
func (o *operator) eachState(cmd *cobra.Command, draw func() error) error {
	var drawn time.Time
	return o.follow(cmd, false, func(_ []byte, e control.Event) error {
		if e.Time.Equal(drawn) { // the drawing at the first of several changes shows them all
			return nil
		}
		drawn = e.Time
		err := draw()
		select {
		case <-cmd.Context().Done():
		case <-time.After(redrawPause):
		}
		return err
	})
}

// redraw shows the state as it is now, in a view or in the output.
func (o *operator) redraw(cmd *cobra.Command, output string, v *view) error {
	devices, resources, err := o.ask(cmd)
	if err != nil {
		return err
	}
	draw := func(s *screen) { s.watched(devices, resources) }
	if v == nil {
		return show(cmd.OutOrStdout(), output, true, devices, draw)
	}
	v.forget() // that the daemon did not answer
	return v.show(draw)
}

// watched writes how the resources stand, and the devices.
func (s *screen) watched(devices []control.Device, resources []control.Resource) {
	s.standings(resources)
	s.WriteString("\n")
	s.devices(urgent(devices), resources, false)
}
