// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
)

// controlSocket is the file name of the control socket in paths.run. This name must not change, because other programs and the
// socket unit use it.
const controlSocket = "control.sock"

// newControl creates the server for the control socket. newControl must be called before the endpoints are created, because the
// endpoints use the server's counters.
func (d *daemon) newControl() *control.Server {
	return control.New(control.Options{
		Version: d.Version, Preview: d.preview != nil, File: d.File, Config: &d.config, Started: d.started, Source: d.source, Inventory: d.inventory,
		Host: &device.Host{Tree: d.host.Tree}, Log: d.Log, // has no helpers, so no request can open a device node
		Registrations: d.registrations,
		Foreign:       func(counted map[string][]string) map[string]string { return d.endpoints.foreignIDs(counted) },
		Unwritten:     d.listUnwritten, Adopt: d.turnover.Adopt, Reset: d.turnover.ByHand,
		Prepare: d.claims.Prepare, Unprepare: d.claims.Unprepare,
	})
}

// registrations returns all resources' registration states. A preview has no kubelet, so it shows every resource as registered
// and connected.
func (d *daemon) registrations() map[string]api.Registration {
	if d.preview == nil {
		return d.endpoints.registrations()
	}
	all := make(map[string]api.Registration)
	for _, r := range d.Config.Resources {
		all[r.Name] = api.Registration{Registered: true, Connected: true}
	}
	return all
}

// listUnwritten returns a message for each state file or CDI spec that could not be written.
func (d *daemon) listUnwritten() []string {
	var all []string
	if err := d.inventory.Store.WriteError(); err != nil {
		all = append(all, fmt.Sprintf("state not saved: %v", err))
	}
	specs := d.specs.Unwritten()
	for _, resource := range slices.Sorted(maps.Keys(specs)) {
		all = append(all, fmt.Sprintf("CDI spec of %s not written: %v", resource, specs[resource]))
	}
	return all
}

// serveSocket returns a task that serves the socket that systemd has passed. If systemd has passed none, the task serves the
// socket that the function "listen" creates. If "listen" is nil, the task serves no socket. If the socket cannot be served, the
// daemon still offers the devices.
func (d *daemon) serveSocket(name, failed string, listen func() (net.Listener, error), serve func(context.Context, net.Listener) error,
) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		var l net.Listener
		var err error
		if f := d.Sockets[name]; f != nil {
			l, err = net.FileListener(f)
		} else if listen != nil {
			l, err = listen()
		}
		ready()
		if l != nil && err == nil {
			err = serve(ctx, l)
		}
		if err != nil {
			d.Log.Error(failed, "err", err)
		}
		<-ctx.Done()
		return nil
	}
}

// listenControl creates the control socket.
func (d *daemon) listenControl() (net.Listener, error) {
	_ = os.MkdirAll(d.Config.Paths.Run, 0o755) // if this fails, creating the socket also fails
	return control.Listen(filepath.Join(d.Config.Paths.Run, controlSocket))
}
