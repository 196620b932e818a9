// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// names returns how the endpoint of a resource names devices to the container runtime; nil: it does not.
func (d *daemon) names(r config.Resource) func([]*inventory.Status) ([]string, error) {
	switch {
	case r.Inject != config.InjectCDI:
		return nil
	case r.CDIKind != "":
		return func(devices []*inventory.Status) ([]string, error) { return cdi.Names(r.CDIKind, devices), nil }
	}
	return func(devices []*inventory.Status) ([]string, error) { return d.specs.Names(r.Name, devices) }
}
