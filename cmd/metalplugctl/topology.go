// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/systemd"
)

// topologyCommand shows where the devices are on the PCI tree.
func (o *operator) topologyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Show the PCI tree and the distances of devices",
		Args:  cobra.NoArgs,
	}
	recorded := recordingFlag(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var t control.Topology
		var err error
		if *recorded != "" {
			t, err = recordedTopology(cmd, *recorded)
		} else {
			err = o.client().Get(cmd.Context(), "/v1/topology", &t)
		}
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), *output, false, t, func(s *screen) { s.topology(t) })
	}
	return cmd
}

// recordedTopology returns the topology of a recording.
func recordedTopology(cmd *cobra.Command, recorded string) (t control.Topology, err error) {
	p := preview{file: config.DefaultFile, log: systemd.TextLogger(cmd.ErrOrStderr(), slog.LevelWarn)}
	if p.config, err = config.Load(p.file); err != nil {
		return t, err
	}
	remove, err := p.machine(recorded)
	if err != nil {
		return t, err
	}
	defer remove()
	err = p.run(cmd.Context(), func(ctx context.Context, devices *inventory.Inventory, host *device.Host) error {
		select {
		case <-devices.Ready():
		case <-ctx.Done():
			return ctx.Err()
		}
		snapshot, _ := devices.Snapshot()
		t = control.NewTopology(&host.Tree, snapshot, nil)
		return nil
	})
	return t, err
}

// topology writes the PCI tree and the distances.
func (s *screen) topology(t control.Topology) {
	var root branch
	var names []string // of GPUs and HCAs
	elsewhere := 0
	for _, p := range t.Devices {
		if t.Distances[p.Name] != nil && !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
		if len(p.Path) == 0 {
			elsewhere++
			continue
		}
		root.add(p.Path, p)
	}
	rows := [][]cell{cells("PCI", "NUMA", "LINK", "NAME", "DEVICE", "HELD BY")}
	for _, below := range root.below {
		rows = append(rows, below.rows("")...)
	}
	if len(rows) == 1 {
		s.WriteString("No device is on PCI.\n")
	} else {
		s.table("", rows...)
	}
	if elsewhere > 0 {
		fmt.Fprintf(s, "%d more not on PCI: see 'metalplugctl list --all'.\n", elsewhere)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(a[:1], b[:1]) })
	if len(names) > 1 {
		s.WriteString("\n")
		rows = [][]cell{append(cells(""), cells(names...)...)}
		for _, from := range names {
			row := cells(from)
			for _, to := range names {
				row = append(row, cell{text: cmp.Or(string(t.Distances[from][to]), "X")})
			}
			rows = append(rows, row)
		}
		s.table("", rows...)
	}
}

// branch is a bridge, or a function with its devices.
type branch struct {
	name    string // without the domain 0000, which people leave out
	below   []*branch
	devices []control.Place
}

// add adds a device at the end of a path.
func (b *branch) add(path []string, p control.Place) {
	if len(path) == 0 {
		b.devices = append(b.devices, p)
		return
	}
	name := strings.TrimPrefix(path[0], "0000:")
	at := slices.IndexFunc(b.below, func(c *branch) bool { return c.name == name })
	if at < 0 {
		at, b.below = len(b.below), append(b.below, &branch{name: name})
	}
	b.below[at].add(path[1:], p)
}

// rows returns the branch and all that is below it. Bridges with one branch below are on one line with that.
func (b *branch) rows(indent string) [][]cell {
	name := indent + b.name
	for len(b.devices) == 0 && len(b.below) == 1 {
		b = b.below[0]
		name += "/" + b.name
	}
	var rows [][]cell
	for _, p := range b.devices {
		id := p.ID
		if p.Resource == "" {
			id = cmp.Or(id, p.Class) + " (not offered)"
		}
		rows = append(rows, cells(name, numaNode(p.NUMANode), cmp.Or(p.Link, "-"), cmp.Or(p.Name, "-"), id, holder(p.Device)))
		name = strings.Repeat(" ", len(name)) // several devices on one function
	}
	if rows == nil {
		rows = append(rows, cells(name, "", "", "", "", ""))
	}
	for _, below := range b.below {
		rows = append(rows, below.rows(indent+"  ")...)
	}
	return rows
}
