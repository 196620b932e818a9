// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/control"
)

// controlSocket is the name of the control socket in paths.run. It is fixed, because other programs connect to it, and
// its unit has it.
const controlSocket = "control.sock"

// newControl makes the control socket's side of the daemon. The endpoints are made after it, for they count with it.
func (d *daemon) newControl() *control.Server {
	return control.New(control.Options{
		Version: d.Version, File: d.File, Config: &d.config, Started: d.started, Source: d.source, Inventory: d.inventory,
		Host: d.host, Log: d.Log,
		Standing:  func() map[string]api.Standing { return d.endpoints.standing() },
		Foreign:   func(counted map[string][]string) map[string]string { return d.endpoints.foreign(counted) },
		Unwritten: d.unwritten, Adopt: d.turnover.Adopt, Reset: d.turnover.ByHand,
	})
}

// unwritten returns which files cannot be written, and why.
func (d *daemon) unwritten() []string {
	var all []string
	if err := d.inventory.Store.Unkept(); err != nil {
		all = append(all, fmt.Sprintf("state not saved: %v", err))
	}
	specs := d.specs.Unwritten()
	for _, resource := range slices.Sorted(maps.Keys(specs)) {
		all = append(all, fmt.Sprintf("CDI spec of %s not written: %v", resource, specs[resource]))
	}
	return all
}

// serveSocket returns the task that serves a socket. It is the one that systemd passes on, or one that listen makes, or
// none if listen is nil. The devices are served all the same if it fails.
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

// listenControl makes the control socket.
func (d *daemon) listenControl() (net.Listener, error) {
	return control.Listen(filepath.Join(d.Config.Paths.Run, controlSocket))
}
