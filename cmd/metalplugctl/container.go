// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
)

// parseContainer parses a container's request, which has the form RESOURCE=COUNT, such as "nvidia.com/gpu=2".
func parseContainer(text string) (api.Container, error) {
	name, count, ok := strings.Cut(text, "=")
	if name == "" {
		return api.Container{}, fmt.Errorf("%q: the name of the resource is missing", text)
	}
	if !ok {
		count = "1"
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || strconv.Itoa(n) != count {
		return api.Container{}, fmt.Errorf("%q: the number of devices must be 1 or more, not %q", text, count)
	}
	return api.Container{Resource: name, Count: n}, nil
}

// container writes the devices and environment variables that a container would get.
func (s *screen) container(c api.Container) {
	s.WriteString("\n")
	asks := fmt.Sprintf("A container that requests %s=%d gets", c.Resource, c.Count)
	if c.Error != "" {
		s.line("", "", asks+" nothing: "+c.Error)
		return
	}
	s.line("", "", asks+":")
	s.WriteString("\n")
	var rows [][]cell
	for _, id := range c.Devices {
		rows = append(rows, cells("device", id))
	}
	for _, n := range c.Nodes {
		row := cells("node", n.Container, n.Permissions)
		if n.Host != n.Container {
			row = append(row, cell{text: "from " + n.Host})
		}
		rows = append(rows, row)
	}
	for _, name := range c.CDI {
		rows = append(rows, cells("cdi", name))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Env)) {
		rows = append(rows, cells("env", key+"="+c.Env[key]))
	}
	s.table("  ", rows...)
}
