// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"strings"

	"github.com/metalplug/metalplug/systemd"
)

// reportStatus keeps the service's status line up to date. A reload sends the line itself instead of waiting for reportStatus, so
// that the line is up to date when "systemctl reload" returns.
func (d *daemon) reportStatus(ctx context.Context, ready func()) error {
	ready()
	last := ""
	for {
		_, changed := d.inventory.Snapshot()
		if line := d.status(); line != last {
			d.notify(systemd.Status(line))
			last = line
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-d.endpoints.changed:
		}
	}
}

// status returns the current status line. After a refused reload, the line begins with the reason until a valid configuration is
// loaded.
func (d *daemon) status() string {
	s := d.control.Status()
	connected, plugins := 0, 0
	for _, r := range s.Resources {
		if r.Connected {
			connected++
		}
		if !r.ByClaim() {
			plugins++
		}
	}
	line := fmt.Sprintf("%d devices healthy, %d unhealthy, %d not offered; kubelet connected to %d of %d resources",
		s.Devices.Healthy, s.Devices.Unhealthy, s.Devices.NotOffered, connected, plugins)
	if refused, _, _ := strings.Cut(s.Configuration.Problem, "\n"); refused != "" {
		return "the configuration was not reloaded: " + refused + "; " + line
	}
	return line
}
