// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// container is what a container asks for and would get.
type container struct {
	Resource string `json:"resource"`
	Count    int    `json:"count"`
	kubelet.Granted
	Error string `json:"error,omitempty"`
}

// parseContainer reads a request of the form RESOURCE=COUNT: "nvidia.com/gpu=2".
func parseContainer(text string) (container, error) {
	name, count, ok := strings.Cut(text, "=")
	if name == "" {
		return container{}, fmt.Errorf("%q: no resource is named", text)
	}
	if !ok {
		count = "1"
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || strconv.Itoa(n) != count {
		return container{}, fmt.Errorf("%q: the number of devices is %q, not a whole number from 1", text, count)
	}
	return container{Resource: name, Count: n}, nil
}

// ask asks the kubelet for what the container gets.
func (c *container) ask(ctx context.Context, n *simulation, all config.Config) (err error) {
	if slices.ContainsFunc(all.Resources, func(r config.Resource) bool { return r.Name == c.Resource }) {
		c.Granted, err = n.kubelet.Give(ctx, c.Resource, c.Count)
	} else {
		err = errors.New("no resource of that name is configured")
	}
	if err != nil {
		err = fmt.Errorf("allocate %d of %s: %w", c.Count, c.Resource, err)
		c.Error = err.Error()
	}
	return err
}

// container writes what a container would get.
func (s *screen) container(c container) {
	s.WriteString("\n")
	asks := fmt.Sprintf("A container that asks for %s=%d gets", c.Resource, c.Count)
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
