// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"

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
		if *recorded != "" || cmd.Flags().Changed("config") {
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

// drawing collects an SVG picture's text.
type drawing struct {
	strings.Builder
	width int // width of the part that has been drawn
	y     int // vertical position of the next element
}

// These constants are lengths in a picture, in pixels.
const (
	margin    = 16
	boxWidth  = 330
	boxHeight = 36
	rowHeight = 42
	levelStep = 360 // horizontal distance from a bridge to its children
	cellWidth = 46
	lineHigh  = 20
)

// classColours maps classes to colours. Devices of other classes are grey.
var classColours = map[string]string{"gpu": "#d5efcf", "infiniband": "#cfe3f7", "fpga": "#e6d6f2", "nvme": "#f8e8c4"}

// distanceColours lists a colour for each distance, nearest first, in the same order as [legend].
var distanceColours = []string{"#7fc97f", "#b3de8e", "#e5e58a", "#f3c886", "#e9a3a3"}

// drawTopology draws the PCI tree and the distances, and returns the SVG text.
func drawTopology(t api.Topology) string {
	root, ends, _ := treeOf(t)
	d := &drawing{y: margin}
	// node is the NUMA node of the host bridge that was drawn last.
	node := ""
	for _, host := range root.below {
		if now := numaNode(host.first().NUMANode); now != node {
			node = now
			d.text(margin, d.y+14, "bold", "NUMA node "+node)
			d.y += rowHeight / 2
		}
		d.branch(host, margin)
		d.y += margin
	}
	if len(ends) > 1 {
		d.matrix(t, ends)
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n"+
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n", d.width+margin, d.y+margin, d)
}

// first returns the first device in a branch.
func (b *branch) first() api.Place {
	for len(b.devices) == 0 {
		b = b.below[0]
	}
	return b.devices[0]
}

// branch draws a branch and everything below it. The parameter left is the position of the left edge. The result is the vertical
// middle of the first box.
func (d *drawing) branch(b *branch, left int) (middle int) {
	name, b := b.followChain()
	var ends []int
	for _, p := range b.devices {
		ends = append(ends, d.device(p, name, left))
	}
	isBridge := ends == nil
	for _, below := range b.below {
		ends = append(ends, d.branch(below, left+levelStep))
	}
	if !isBridge {
		return ends[0]
	}
	middle = (ends[0] + ends[len(ends)-1]) / 2
	for _, end := range ends {
		fmt.Fprintf(d, "<path d=\"M%d %dH%dV%dH%d\" fill=\"none\" stroke=\"#888\"/>\n",
			left+boxWidth, middle, left+(boxWidth+levelStep)/2, end, left+levelStep)
	}
	d.box(left, middle-boxHeight/2, "#eee", "", name, "")
	return middle
}

// device draws one of a PCI function's devices and returns the vertical middle of its box. The box of a device that is not
// offered has a dashed outline. The box of a device that a pod holds has a thick outline and names the pod.
func (d *drawing) device(p api.Place, function string, left int) (middle int) {
	style, below := "", p.Model
	if p.Resource == "" {
		style = " stroke-dasharray=\"4\""
	}
	if by := holder(p.Device); by != "-" {
		style, below = " stroke-width=\"3\"", "held by "+by
	}
	head := strings.TrimSpace(strings.Join([]string{cmp.Or(p.Name, p.Class), function, p.Link}, "  "))
	d.box(left, d.y, cmp.Or(classColours[p.Class], "#ddd"), style, head, cmp.Or(below, p.ID))
	d.y += rowHeight
	return d.y - rowHeight + boxHeight/2
}

// box draws a box that contains the text head and, unless it is empty, a second line.
func (d *drawing) box(left, top int, colour, style, head, below string) {
	d.width = max(d.width, left+boxWidth)
	fmt.Fprintf(d, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"%s\" stroke=\"#555\"%s/>\n", left, top, boxWidth, boxHeight, colour, style)
	if below == "" {
		d.text(left+8, top+22, "normal", head)
		return
	}
	d.text(left+8, top+15, "bold", head)
	d.text(left+8, top+30, "normal", below)
}

// text draws one line of text at the given left edge and baseline.
func (d *drawing) text(left, base int, weight, text string) {
	fmt.Fprintf(d, "<text x=\"%d\" y=\"%d\" font-weight=\"%s\">%s</text>\n", left, base, weight, template.HTMLEscapeString(clean(text)))
}

// matrix draws a table of the distances between GPUs and HCAs, and explains the distances.
func (d *drawing) matrix(t api.Topology, ends []api.Place) {
	colours := make(map[api.Distance]string)
	for i, l := range legend {
		colours[l.distance] = distanceColours[i]
	}
	at := func(column int) int { return margin + column*cellWidth }
	for column, to := range ends {
		d.text(at(column+1)+6, d.y+14, "bold", to.Name)
	}
	for _, from := range ends {
		d.y += lineHigh
		d.text(margin, d.y+14, "bold", from.Name)
		for column, to := range ends {
			distance := t.Distances[from.Name][to.Name]
			fmt.Fprintf(d, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" stroke=\"white\"/>\n",
				at(column+1), d.y, cellWidth, lineHigh, cmp.Or(colours[distance], "#eee"))
			d.text(at(column+1)+6, d.y+14, "normal", cmp.Or(string(distance), "X"))
		}
	}
	d.width = max(d.width, at(len(ends)+1))
	d.y += lineHigh
	for _, l := range legend {
		d.y += lineHigh
		d.text(margin, d.y, "bold", string(l.distance))
		d.text(at(1), d.y, "normal", l.text)
	}
}
