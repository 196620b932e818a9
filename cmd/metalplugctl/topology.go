// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
)

// topologyCommand shows where devices are in the PCI tree.
func (o *clientOptions) topologyCommand() *cobra.Command {
	cmd := newCommand("topology")
	recorded, file := recordingFlag(cmd), configFlag(cmd)
	output := outputFlag(cmd, "svg")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var t api.Topology
		var err error
		ask := func(o *clientOptions) error { return o.client().Get(cmd.Context(), "/v1/topology", &t) }
		if *recorded != "" {
			p := preview{file: *file, logLevel: "warn"}
			if err = p.selectMachine(*recorded); err == nil {
				err = p.run(cmd, ask)
			}
		} else {
			err = ask(o)
		}
		if err != nil {
			return err
		}
		if *output == "svg" {
			_, err := io.WriteString(cmd.OutOrStdout(), drawTopology(t))
			return err
		}
		return show(cmd.OutOrStdout(), *output, false, t, func(s *screen) { s.writeTopology(t) })
	}
	return cmd
}

// legend explains each distance, nearest first, in the terms that nvidia-smi uses.
var legend = []struct {
	distance api.Distance
	text     string
}{
	{api.PIX, "at most one PCIe switch is between them"},
	{api.PXB, "several PCIe switches, but no host bridge"},
	{api.PHB, "a PCIe host bridge"},
	{api.NODE, "the interconnect between host bridges of one NUMA node"},
	{api.SYS, "the interconnect between NUMA nodes"},
}

// writeTopology writes the PCI tree and the distances.
func (s *screen) writeTopology(t api.Topology) {
	root, ends, elsewhere := treeOf(t)
	rows := [][]cell{cells("PCI", "NUMA", "LINK", "NAME", "DEVICE", "BUNDLE", "HELD BY")}
	for _, below := range root.below {
		rows = append(rows, below.rows("")...)
	}
	if len(rows) == 1 {
		s.line("", "", "No device is a PCI device.")
	} else {
		if !slices.ContainsFunc(t.Devices, func(p api.Place) bool { return p.Bundle != "" }) {
			for i := range rows {
				rows[i] = slices.Delete(rows[i], 5, 6)
			}
		}
		s.table("", rows...)
	}
	if elsewhere > 0 {
		s.line("", "", fmt.Sprintf("%d more not on PCI: see 'metalplugctl list --all'.", elsewhere))
	}
	if len(ends) < 2 {
		return
	}
	rows = [][]cell{cells("")}
	for _, to := range ends {
		rows[0] = append(rows[0], cell{text: to.Name})
	}
	rows[0] = append(rows[0], cells("CPU Affinity", "NUMA Affinity")...)
	for _, from := range ends {
		row := cells(from.Name)
		for _, to := range ends {
			row = append(row, cell{text: cmp.Or(string(t.Distances[from.Name][to.Name]), "X")})
		}
		rows = append(rows, append(row, cells(cmp.Or(from.CPUs, "-"), numaNode(from.NUMANode))...))
	}
	s.WriteString("\n")
	s.table("", rows...)
	rows = [][]cell{cells("X", "the same PCI function")}
	for _, l := range legend {
		rows = append(rows, cells(string(l.distance), l.text))
	}
	s.WriteString("\n")
	s.table("  ", rows...)
}

// treeOf returns the PCI tree, the GPUs and HCAs for the table of distances, and the number of devices that are not on PCI.
func treeOf(t api.Topology) (root *branch, ends []api.Place, elsewhere int) {
	root = new(branch)
	seen := make(map[string]bool)
	for _, p := range t.Devices {
		if t.Distances[p.Name] != nil && !seen[p.Name] {
			seen[p.Name] = true
			ends = append(ends, p)
		}
		if len(p.Path) == 0 {
			elsewhere++
			continue
		}
		root.add(p.Path, p)
	}
	slices.SortStableFunc(ends, func(a, b api.Place) int { return cmp.Compare(a.Class, b.Class) }) // "gpu" sorts before "infiniband"
	return root, ends, elsewhere
}

// branch is a bridge, or a PCI function with its devices.
type branch struct {
	name    string // address without the domain 0000
	below   []*branch
	devices []api.Place
}

// add adds a device at the end of a path, and creates the missing branches of the path.
func (b *branch) add(path []string, p api.Place) {
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

// followChain follows a chain of bridges with one branch each. The results are the joined names of these bridges, and the
// last branch.
func (b *branch) followChain() (name string, end *branch) {
	for name = b.name; len(b.devices) == 0 && len(b.below) == 1; name += "/" + b.name {
		b = b.below[0]
	}
	return name, b
}

// rows returns the rows for the branch and everything below it. A chain of bridges with one branch each has one row.
func (b *branch) rows(indent string) [][]cell {
	name, b := b.followChain()
	name = indent + name
	var rows [][]cell
	for _, p := range b.devices {
		rows = append(rows, cells(name, numaNode(p.NUMANode), cmp.Or(p.Link, "-"), cmp.Or(p.Name, "-"), treeName(p), cmp.Or(p.Bundle, "-"), holder(p.Device)))
		name = strings.Repeat(" ", len(name)) // one function may have several devices
	}
	if rows == nil {
		rows = append(rows, cells(name, "", "", "", "", "", ""))
	}
	for _, below := range b.below {
		rows = append(rows, below.rows(indent+"  ")...)
	}
	return rows
}

// treeName returns the name that the tree shows for a device.
func treeName(p api.Place) string {
	if p.Resource == "" {
		return cmp.Or(p.ID, p.Class) + " (not offered)"
	}
	return p.ID
}
