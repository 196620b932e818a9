// SPDX-License-Identifier: Apache-2.0

package grafana

//lint:file-ignore SA1019 the dashboard has the first schema, which every version of Grafana imports

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

const (
	file    = "../../packaging/prometheus/dashboard.json"
	picture = "../../docs/dashboard.svg"
)

var update = flag.Bool("update", false, "draw "+picture+" again")

// read returns the dashboard. It accepts no field that the kit does not know, and needs each field that Grafana stores.
func read(t *testing.T) (d dashboard.Dashboard) {
	t.Helper()
	plugins.RegisterDefaultPlugins() // the types of panels and queries
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var strict dashboard.Dashboard
	if err := strict.UnmarshalJSONStrict(text); err != nil && err.Error() != "" { // the kit takes an empty list of errors for one
		t.Fatal(err)
	}
	if err := errors.Join(json.Unmarshal(text, &d), d.Validate()); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPanels checks that the panels fill Grafana's grid of 24 columns, and that no two overlap.
func TestPanels(t *testing.T) {
	taken := make(map[[2]uint32]string)
	for _, p := range read(t).Panels {
		for x := p.Panel.GridPos.X; x < p.Panel.GridPos.X+p.Panel.GridPos.W; x++ {
			for y := p.Panel.GridPos.Y; y < p.Panel.GridPos.Y+p.Panel.GridPos.H; y++ {
				if other := taken[[2]uint32{x, y}]; x >= 24 || other != "" {
					t.Fatalf("%q is at column %d, row %d, where there is %q", *p.Panel.Title, x, y, cmp.Or(other, "no column"))
				}
				taken[[2]uint32{x, y}] = *p.Panel.Title
			}
		}
	}
	if len(taken) == 0 {
		t.Error("there are no panels")
	}
}

// TestPicture compares the picture in the documents with the layout of the dashboard.
func TestPicture(t *testing.T) {
	want := draw(read(t))
	if *update {
		if err := os.WriteFile(picture, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(picture)
	if err != nil || string(got) != want {
		t.Errorf("%s does not show the dashboard, %v: go test ./integration/grafana -update draws it", picture, err)
	}
}

// draw returns the layout of a dashboard as SVG. A cell of the grid has 40 by 20 units.
func draw(d dashboard.Dashboard) string {
	var panels strings.Builder
	height := uint32(0)
	for _, p := range d.Panels {
		at := p.Panel.GridPos
		x, y, w, h := 40*at.X, 20*at.Y, 40*at.W, 20*at.H
		height = max(height, y+h)
		fmt.Fprintf(&panels, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"#f4f5f5\" stroke=\"#999\"/>\n", x+4, y+4, w-8, h-8)
		for n, line := range wrapped(*p.Panel.Title+" ("+p.Panel.Type+")", int(w-24)/6) {
			fmt.Fprintf(&panels, "<text x=\"%d\" y=\"%d\">%s</text>\n", x+12, int(y)+22+16*n, html.EscapeString(line))
		}
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n", height) +
		"<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" + panels.String() + "</svg>\n"
}

// wrapped returns a text in lines of at most the given number of letters.
func wrapped(text string, width int) (lines []string) {
	for _, word := range strings.Fields(text) {
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
