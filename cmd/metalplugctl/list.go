// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/control"
)

// listCommand shows all devices at one moment. The JSON is what the daemon answers, field by field. Its names are fixed,
// so that a script written for one version reads the output of the next.
func (o *operator) listCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the devices: healthy or not, and who holds them",
		Long: `List the devices: healthy or not, and who holds them. With --all also the hardware that is seen and not offered, with
the reason, and the PCI address of each device.

Exit code 1: a device is Unhealthy that nobody has cordoned.`,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "hardware that is seen and not offered too, with the reason; in JSON it always is")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		devices, resources, err := o.ask(cmd)
		if err != nil {
			return err
		}
		err = show(cmd, *output, devices, func(s *screen) { s.devices(resources, devices, all) })
		if err == nil && slices.ContainsFunc(devices, isProblem) {
			err = errFound
		}
		return err
	}
	return cmd
}

// ask asks the daemon for all that a list shows.
func (o *operator) ask(cmd *cobra.Command) (devices []control.Device, resources []control.Resource, err error) {
	c := o.client()
	if err := c.Get(cmd.Context(), "/v1/resources", &resources); err != nil {
		return nil, nil, err
	}
	err = c.Get(cmd.Context(), "/v1/devices", &devices)
	return devices, resources, err
}

// isProblem tells whether a device is not as somebody wants it to be.
func isProblem(d control.Device) bool {
	return d.Resource != "" && d.Health != "Healthy" && !d.Cordoned
}

// devices writes the resources with their devices and, if all are wanted, the hardware that is not offered.
func (s *screen) devices(resources []control.Resource, devices []control.Device, all bool) {
	by := make(map[string][]control.Device)
	for _, d := range devices {
		by[d.Resource] = append(by[d.Resource], d)
	}
	others := by[""]
	delete(by, "")
	shown := 0
	for _, r := range resources {
		if !r.Optional || len(by[r.Name]) > 0 || r.Connected {
			shown++
			s.resource(r, by[r.Name], all)
		}
		delete(by, r.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(by)) { // taken out of the configuration while pods hold them
		shown++
		left := by[name]
		s.resource(control.Resource{Name: name, Class: left[0].Class, Unhealthy: len(left)}, left, all)
	}
	if shown == 0 {
		s.paragraph(0, "", "", "No device is offered.")
	}
	switch {
	case all && len(others) > 0:
		fmt.Fprintf(s, "\n%s\n", s.paint(bold, "Seen and not offered"))
		s.others(others)
	case len(others) > 0:
		s.WriteString("\n")
		s.paragraph(0, "", "", fmt.Sprintf("%d more seen and not offered: see 'metalplugctl list --all'.", len(others)))
	}
}

// resource writes one resource and its devices; all: with where they are.
func (s *screen) resource(r control.Resource, devices []control.Device, all bool) {
	if s.Len() > 0 {
		s.WriteString("\n")
	}
	s.paragraph(0, r.Name+"  ", bold, standing(r))
	if r.Held != "" {
		s.paragraph(2, "", "", "held back: "+r.Held)
	}
	if len(devices) == 0 {
		return
	}
	slices.SortStableFunc(devices, func(a, b control.Device) int { return cmp.Compare(a.ID, b.ID) })
	rows := [][]cell{cells("DEVICE", "HEALTH", "NUMA", "PCI", "NODE", "HELD BY")}
	for _, d := range devices {
		row := cells(d.ID, "", numaNode(d.NUMANode), pciAddress(d.PCI), firstNode(d.Nodes), holder(d))
		row[1] = healthCell(d)
		rows = append(rows, row)
	}
	if !all {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], 3, 4)
		}
	}
	s.table(2, rows...)
	s.remarks(devices)
}

// remarks writes what there is to say of devices that are not well, once for all of which the same is.
func (s *screen) remarks(devices []control.Device) {
	ids := make(map[string][]string)
	var remarks []string
	remark := func(d control.Device, text string) {
		if ids[text] == nil {
			remarks = append(remarks, text)
		}
		ids[text] = append(ids[text], d.ID)
	}
	for _, d := range devices {
		if d.Health != "Healthy" {
			remark(d, reasonOf(d))
		}
		if d.Warning != "" {
			remark(d, "warning: "+d.Warning)
		}
	}
	for i, text := range remarks {
		if i == 0 {
			s.WriteString("\n")
		}
		switch of := ids[text]; {
		case len(of) == 1:
			s.paragraph(2, "", "", of[0]+": "+text)
		case len(of) == len(devices):
			s.paragraph(2, "", "", fmt.Sprintf("all %d devices: %s", len(of), text))
		default:
			s.paragraph(2, "", "", fmt.Sprintf("%d devices: %s", len(of), text))
			s.paragraph(4, "", "", strings.Join(of, " "))
		}
	}
}

// others writes hardware that is not offered: by class and reason, and of each where it is.
func (s *screen) others(devices []control.Device) {
	slices.SortStableFunc(devices, func(a, b control.Device) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(reasonOf(a), reasonOf(b)))
	})
	for len(devices) > 0 {
		first := devices[0]
		n := slices.IndexFunc(devices, func(d control.Device) bool { return d.Class != first.Class || reasonOf(d) != reasonOf(first) })
		if n < 0 {
			n = len(devices)
		}
		kind := first.Class
		if n > 1 {
			kind = fmt.Sprintf("%s, %d devices", kind, n)
		}
		s.paragraph(2, "", "", kind+": "+reasonOf(first))
		rows := make([][]cell, n)
		for i, d := range devices[:n] {
			rows[i] = cells(cmp.Or(d.ID, shortPath(d.SysPath)), pciAddress(d.PCI), firstNode(d.Nodes))
		}
		s.table(4, rows...)
		devices = devices[n:]
	}
}
