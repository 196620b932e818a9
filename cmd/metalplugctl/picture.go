// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/template"

	"github.com/metalplug/metalplug/daemon/api"
)

// drawing collects the text of an SVG picture.
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

// device draws a device of a PCI function and returns the vertical middle of its box. The box of a device that is not offered has
// a dashed outline. The box of a device that a pod holds has a thick outline and names the pod.
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

// text draws one line of text with the given left edge and baseline.
func (d *drawing) text(left, base int, weight, text string) {
	fmt.Fprintf(d, "<text x=\"%d\" y=\"%d\" font-weight=\"%s\">%s</text>\n", left, base, weight, template.HTMLEscapeString(clean(text)))
}

// matrix draws a table of the distances between the GPUs and the HCAs, and explains the distances.
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
