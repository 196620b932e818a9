// SPDX-License-Identifier: Apache-2.0

package preview

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/metalplug/metalplug/daemon/words"
)

// clear is what moves a terminal's cursor to the top and erases everything below (ECMA-48 CUP and ED).
const clear = "\x1b[H\x1b[J"

// draw writes a state in one piece, so that a terminal does not flicker.
func (o *Options) draw(s State) error {
	var out bytes.Buffer
	if o.JSON {
		encoder := json.NewEncoder(&out)
		if !o.Live {
			encoder.SetIndent("", "  ")
		}
		if err := encoder.Encode(s); err != nil {
			return err
		}
	} else {
		if o.Screen {
			out.WriteString(clear)
		}
		s.text(&out, o.Empty)
	}
	_, err := o.Out.Write(out.Bytes())
	return err
}

func (s State) text(out *bytes.Buffer, empty string) {
	fmt.Fprintf(out, "%s\n", s.Machine)
	if len(s.Resources) > 0 {
		fmt.Fprintf(out, "\nWhat \"kubectl describe node\" would show:\n\n")
	}
	table(out, []string{"RESOURCE", "CAPACITY", "ALLOCATABLE"}, s.Resources, func(r Resource) []string {
		return []string{r.Name, strconv.Itoa(r.Capacity), strconv.Itoa(r.Allocatable)}
	})
	if len(s.Devices) == 0 {
		fmt.Fprintf(out, "\n%s", empty)
	} else {
		fmt.Fprintf(out, "\nDevices:\n\n")
		table(out, []string{"RESOURCE", "DEVICE", "HEALTH", "NUMA", "NODE", "WHAT"}, s.Devices, func(d Device) []string {
			return []string{d.Resource, d.ID, d.Health, words.NUMA(d.NUMANode), words.First(d.Nodes), d.what()}
		})
	}
	if len(s.NotOffered) > 0 {
		fmt.Fprintf(out, "\nSeen and not offered:\n\n")
		table(out, []string{"CLASS", "WHERE", "WHY"}, s.NotOffered, func(d Device) []string {
			return []string{d.Class, words.Short(d.SysPath), d.Reason}
		})
	}
	for _, c := range s.Containers {
		c.text(out)
	}
	out.WriteString("\n")
}

func (c Container) text(out *bytes.Buffer) {
	if c.Error != "" {
		fmt.Fprintf(out, "\nA container that asks for %s=%d gets nothing: %s\n", c.Resource, c.Count, c.Error)
		return
	}
	fmt.Fprintf(out, "\nA container that asks for %s=%d gets:\n\n", c.Resource, c.Count)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, id := range c.Devices {
		fmt.Fprintf(w, "  device\t%s\n", id)
	}
	for _, n := range c.Nodes {
		fmt.Fprintf(w, "  node\t%s\t%s\t%s\n", n.Container, n.Permissions, from(n))
	}
	for _, name := range c.CDI {
		fmt.Fprintf(w, "  cdi\t%s\n", name)
	}
	w.Flush()
	for _, key := range slices.Sorted(maps.Keys(c.Env)) {
		fmt.Fprintf(out, "  env     %s=%s\n", key, c.Env[key])
	}
}

// table writes rows, if there are any, in columns.
func table[T any](out *bytes.Buffer, head []string, rows []T, columns func(T) []string) {
	if len(rows) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  "+strings.Join(head, "\t"))
	for _, row := range rows {
		fmt.Fprintln(w, "  "+strings.Join(columns(row), "\t"))
	}
	w.Flush()
}

func (d Device) what() string {
	if d.Health == "Healthy" {
		return d.Model
	}
	return d.Reason
}

// from names the node on the host where it has another name there.
func from(n Node) string {
	if n.Host == n.Container {
		return ""
	}
	return "from " + n.Host
}
