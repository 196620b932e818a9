// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"strings"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// reportStatus keeps the status line of the service up to date. A reload sends it by itself, so that it is there when
// systemctl returns.
func (d *daemon) reportStatus(ctx context.Context, ready func()) error {
	ready()
	last := ""
	for {
		_, changed := d.inventory.Snapshot()
		if line := d.status(); line != last {
			d.notify(d.Notifier.Status(line))
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

// status is the status line as it is now.
func (d *daemon) status() string {
	snapshot, _ := d.inventory.Snapshot()
	connected, all := d.endpoints.registered()
	return statusLine(snapshot, connected, all, d.configuration().Problem)
}

// statusLine begins with why a configuration was refused, until one is taken.
func statusLine(s *inventory.Snapshot, connected, all int, refused string) string {
	healthy, unhealthy := 0, 0
	for _, offer := range s.Offers {
		for _, device := range offer.Devices {
			if device.Healthy {
				healthy++
			} else {
				unhealthy++
			}
		}
	}
	line := fmt.Sprintf("%d devices healthy, %d unhealthy, %d seen and not offered; kubelet connected to %d of %d resources",
		healthy, unhealthy, len(s.Others), connected, all)
	if refused == "" {
		return line
	}
	first, _, _ := strings.Cut(refused, "\n")
	return "the configuration was not reloaded: " + first + "; " + line
}
