// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// Given lists the nodes, variables and CDI names that a container gets for its devices.
type Given struct {
	Nodes []device.Node
	Env   map[string]string
	CDI   []string // names of the devices in CDI specs
}

// Give returns what Allocate would give a container that uses these devices of a resource. The error contains the reason
// why the container cannot have them.
func Give(r Resource, host *device.Host, devices []*inventory.Status) (g Given, err error) {
	answer, err := service{Endpoint: &Endpoint{Resource: r, Host: host}}.answer(devices)
	if err != nil {
		return g, err
	}
	g.Env = answer.GetEnvs()
	for _, n := range answer.GetDevices() {
		g.Nodes = append(g.Nodes, device.Node{Host: n.GetHostPath(), Container: n.GetContainerPath(), Permissions: n.GetPermissions()})
	}
	for _, d := range answer.GetCdiDevices() {
		g.CDI = append(g.CDI, d.GetName())
	}
	return g, nil
}
