// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
)

// listCommand shows all devices once, without waiting for changes. The JSON output has the fields that metalplugd sends. Field
// names never change, so scripts also work with later versions.
func (o *clientOptions) listCommand() *cobra.Command {
	var all bool
	cmd := newCommand("list")
	output := outputFlag(cmd)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include hardware that is not offered, and PCI addresses")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		devices, resources, err := o.ask(cmd)
		if err != nil {
			return err
		}
		status := api.Status{Ready: true}
		if len(devices) == 0 { // a starting metalplugd may not know all devices yet
			if err := o.client().Get(cmd.Context(), "/v1/status", &status); err != nil {
				return err
			}
		}
		return show(cmd.OutOrStdout(), *output, false, devices, func(s *screen) {
			if !status.Ready {
				s.line("", "", "metalplugd has not inspected the hardware yet: repeat the command in a few seconds.")
				return
			}
			s.writeDevices(devices, resources, all)
		})
	}
	return cmd
}

// ask requests the devices and resources from metalplugd.
func (o *clientOptions) ask(cmd *cobra.Command) (devices []api.Device, resources []api.Resource, err error) {
	c := o.client()
	if err := c.Get(cmd.Context(), "/v1/resources", &resources); err != nil {
		return nil, nil, err
	}
	err = c.Get(cmd.Context(), "/v1/devices", &devices)
	return devices, resources, err
}

// writeDevices writes a table of devices. If the parameter "all" is true, the table includes devices that are not offered, and
// has a column for PCI addresses.
func (s *screen) writeDevices(devices []api.Device, resources []api.Resource, all bool) {
	held := make(map[string]string)
	for _, r := range resources {
		held[r.Name] = r.Held
	}
	rows := [][]cell{cells("DEVICE", "RESOURCE", "HEALTH", "NUMA", "PCI", "NODE", "HELD BY", "MODEL OR REASON")}
	more := 0
	for _, d := range devices {
		if d.Resource == "" && !all {
			more++
			continue
		}
		row := cells(nameOf(d), cmp.Or(d.Resource, "-"), "", numaNode(d.NUMANode), cmp.Or(d.PCI, "-"),
			firstOf(d.Nodes), holder(d), cmp.Or(remark(d, held[d.Resource]), d.Model))
		row[2] = healthCell(d)
		rows = append(rows, row)
	}
	for i := range rows {
		if !all {
			rows[i] = slices.Delete(rows[i], 4, 5)
		}
	}
	if len(rows) > 1 {
		s.table("", rows...)
	} else {
		s.line("", "", "No device is offered.")
	}
	if more > 0 {
		s.line("", "", fmt.Sprintf("%d more not offered: see 'metalplugctl list --all'.", more))
	}
}

// nameOf returns the ID of a device, or its kernel name if it has no ID, because the command "why" accepts both.
func nameOf(d api.Device) string { return cmp.Or(d.ID, path.Base(d.SysPath)) }

// byUrgency returns the devices in order of urgency. Devices with a problem come first, and devices that are not offered come
// last.
func byUrgency(devices []api.Device) []api.Device {
	calm := func(d api.Device) int {
		switch {
		case d.Resource == "":
			return 1
		case d.Health == "Healthy" && d.Warning == "":
			return 2
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(devices), func(a, b api.Device) int { return cmp.Compare(calm(a), calm(b)) })
}

// remark returns the text for the last column of a device's row. The parameter "held" is the reason why the device's resource is
// held back, or empty.
func remark(d api.Device, held string) string {
	var all []string
	if d.Health != "Healthy" {
		all = append(all, reasonOf(d))
	}
	if d.Bundle != "" {
		all = append(all, "in "+d.Bundle)
	}
	if d.Warning != "" {
		all = append(all, "warning: "+d.Warning)
	}
	if held != "" {
		all = append(all, "held back: "+held)
	}
	return strings.Join(all, "; ")
}

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
				if v != nil {
					_ = v.change(func() { v.notes = nil }) // removes the note that metalplugd does not answer
				}
				return v.show(cmd.OutOrStdout(), *output, true, devices, func(s *screen) {
					s.writeRegistrations(resources)
					s.WriteString("\n")
					s.writeDevices(byUrgency(devices), resources, false)
				})
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
