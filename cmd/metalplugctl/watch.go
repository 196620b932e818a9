// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
)

// redrawInterval is the minimum time between two redraws, because a person cannot read faster.
const redrawInterval = 100 * time.Millisecond

// watchCommand redraws the list after each change. Each redraw requests the whole list, so the list is correct even if an event
// was missed.
func (o *clientOptions) watchCommand() *cobra.Command {
	cmd := newCommand("watch")
	output, once := outputFlag(cmd), onceFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return live(cmd, *output, *once, func(v *view) error {
			follow := v != nil || *output == "json" && !*once
			return o.eachState(cmd, follow, func(devices []api.Device, resources []api.Resource) error {
				v.forget() // removes the note that metalplugd does not answer
				return v.show(cmd.OutOrStdout(), *output, true, devices, func(s *screen) { s.writeWatch(devices, resources) })
			})
		})
	}
	return cmd
}

// eachState calls the function "draw" once. If the parameter "follow" is true, eachState also calls draw after each change, until
// the command ends.
func (o *clientOptions) eachState(cmd *cobra.Command, follow bool, draw func([]api.Device, []api.Resource) error) error {
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
	return o.follow(cmd, false, func(e api.Event) error {
		if e.Time.Equal(drawn) { // the redraw for an earlier event has already shown this change
			return nil
		}
		drawn = e.Time
		err := state()
		select {
		case <-cmd.Context().Done():
		case <-time.After(redrawInterval):
		}
		return err
	})
}

// writeWatch writes the state of each resource and each device.
func (s *screen) writeWatch(devices []api.Device, resources []api.Resource) {
	s.writeRegistrations(resources)
	s.WriteString("\n")
	s.devices(byUrgency(devices), resources, false)
}
