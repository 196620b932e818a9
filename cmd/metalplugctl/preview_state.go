// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// previewState is everything that is shown at one moment.
type previewState struct {
	Machine    string             `json:"machine"`
	Resources  []previewResource  `json:"resources"`
	Devices    []control.Device   `json:"devices"`
	NotOffered []control.Device   `json:"notOffered"`
	Containers []previewContainer `json:"containers,omitempty"`
}

// previewResource is a line of the output of "kubectl describe node".
type previewResource struct {
	Name        string `json:"name"`
	Capacity    int    `json:"capacity"`
	Allocatable int    `json:"allocatable"`
}

// previewContainer is what a container would get.
type previewContainer struct {
	Resource string `json:"resource"`
	Count    int    `json:"count"`
	plugin.Assigned
	Error string `json:"error,omitempty"`
}

// request is what a container asks for: "nvidia.com/gpu=2".
type request struct {
	resource string
	count    int
}

// parseRequest reads a request of the form RESOURCE=COUNT.
func parseRequest(text string) (request, error) {
	name, count, ok := strings.Cut(text, "=")
	if name == "" {
		return request{}, fmt.Errorf("%q: no resource is named", text)
	}
	if !ok {
		return request{name, 1}, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || strconv.Itoa(n) != count {
		return request{}, fmt.Errorf("%q: the number of devices is %q, not a whole number from 1", text, count)
	}
	return request{name, n}, nil
}

// state returns what a snapshot offers, and what containers would get of it; the error is the reason why one gets nothing.
func (p *preview) state(h *device.Host, snapshot *inventory.Snapshot) (previewState, error) {
	s := previewState{Machine: p.title, Resources: []previewResource{}, Devices: []control.Device{}, NotOffered: []control.Device{}}
	for _, r := range p.config.Resources {
		line, shares := previewResource{Name: r.Name}, max(1, r.Shares)
		for _, d := range snapshot.Offer(r.Name).Devices {
			s.Devices = append(s.Devices, control.NewDevice(d, nil))
			line.Capacity += shares
			if d.Healthy {
				line.Allocatable += shares
			}
		}
		if !r.Optional || line.Capacity > 0 {
			s.Resources = append(s.Resources, line)
		}
	}
	for _, d := range snapshot.Others {
		s.NotOffered = append(s.NotOffered, control.NewDevice(d, nil))
	}
	var refused []error
	var taken []string
	for _, want := range p.requests {
		c, err := p.container(h, snapshot, want, taken)
		taken = append(taken, c.Devices...)
		s.Containers, refused = append(s.Containers, c), append(refused, err)
	}
	return s, errors.Join(refused...)
}

// container returns what a container would get. It does not get what others have taken.
func (p *preview) container(h *device.Host, snapshot *inventory.Snapshot, want request, taken []string) (previewContainer, error) {
	c := previewContainer{Resource: want.resource, Count: want.count}
	at := slices.IndexFunc(p.config.Resources, func(r config.Resource) bool { return r.Name == want.resource })
	err := errors.New("no resource of that name is configured")
	if at >= 0 {
		r := p.config.Resources[at]
		offered := plugin.Resource{
			Name: r.Name, Shares: r.Shares, Spread: r.Prefer == config.Spread, Permissions: r.Permissions, Variable: r.Variable(),
		}
		if r.Inject == config.InjectCDI {
			kind := r.CDIKind
			if kind == "" {
				kind = cdi.Kind(r.Name)
			}
			offered.CDI = func(devices []*inventory.Status) ([]string, error) { return cdi.Names(kind, devices), nil }
		}
		c.Assigned, err = plugin.Assign(h, offered, snapshot.Offer(r.Name), taken, want.count)
	}
	if err != nil {
		err = fmt.Errorf("allocate %d of %s: %w", want.count, want.resource, err)
		c.Error = err.Error()
	}
	return c, err
}

// draw writes a state in one piece, so that a terminal does not flicker.
func (p *preview) draw(state previewState) error {
	s := newScreen(p.out)
	if *p.output == "json" {
		encoder := json.NewEncoder(s)
		if !p.live {
			encoder.SetIndent("", "  ")
		}
		if err := encoder.Encode(state); err != nil {
			return err
		}
	} else {
		if p.live && isTerminal(p.out) {
			s.WriteString(clearScreen)
		}
		s.preview(state)
	}
	_, err := s.WriteTo(p.out)
	return err
}

// preview writes a state for people.
func (s *screen) preview(state previewState) {
	fmt.Fprintf(s, "%s\n", clean(state.Machine))
	if len(state.Resources) > 0 {
		s.WriteString("\nIn \"kubectl describe node\":\n\n")
		rows := [][]cell{cells("RESOURCE", "CAPACITY", "ALLOCATABLE")}
		for _, r := range state.Resources {
			rows = append(rows, cells(r.Name, strconv.Itoa(r.Capacity), strconv.Itoa(r.Allocatable)))
		}
		s.table(2, rows...)
	}
	s.WriteString("\n")
	if len(state.Devices) == 0 {
		s.WriteString("This machine has no device that the configuration takes. To see what other machines would offer:\n\n" +
			bundledRecordings(os.Args[0]+" preview --recording ") + "\n")
	}
	if all := slices.Concat(state.Devices, state.NotOffered); len(all) > 0 {
		s.devices(all, nil, true)
	}
	for _, c := range state.Containers {
		s.container(c)
	}
	s.WriteString("\n")
}

// container writes what a container would get.
func (s *screen) container(c previewContainer) {
	if c.Error != "" {
		fmt.Fprintf(s, "\nA container that asks for %s=%d gets nothing: %s\n", c.Resource, c.Count, clean(c.Error))
		return
	}
	fmt.Fprintf(s, "\nA container that asks for %s=%d gets:\n\n", c.Resource, c.Count)
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
	s.table(2, rows...)
}
