// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// container is what a container asks for and would get.
type container struct {
	Resource string `json:"resource"`
	Count    int    `json:"count"`
	plugin.Assigned
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

// assign adds what the container would get. It does not get what others have taken.
func (c *container) assign(all config.Config, h *device.Host, snapshot *inventory.Snapshot, taken []string) error {
	err := errors.New("no resource of that name is configured")
	at := slices.IndexFunc(all.Resources, func(r config.Resource) bool { return r.Name == c.Resource })
	if at >= 0 {
		r := all.Resources[at]
		offered := plugin.Resource{
			Name: r.Name, Shares: r.Shares, Spread: r.Prefer == config.Spread, Permissions: r.Permissions,
			Variable: r.Variable(), Env: r.Env,
		}
		if r.Inject == config.InjectCDI {
			offered.CDI = func(devices []*inventory.Status) ([]string, error) {
				return cdi.Names(cmp.Or(r.CDIKind, cdi.Kind(r.Name)), devices), nil
			}
		}
		c.Assigned, err = plugin.Assign(h, offered, snapshot.Offer(r.Name), taken, c.Count)
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
