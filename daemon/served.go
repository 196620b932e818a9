// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/metalplug/metalplug/daemon/control"
)

// serveControl serves the control socket. The devices are served all the same where it cannot.
func (d *daemon) serveControl(ctx context.Context, ready func()) error {
	l, err := d.controlListener()
	ready()
	if err == nil {
		err = d.control.Serve(ctx, l)
	}
	d.unserved("control socket not served", err)
	<-ctx.Done()
	return nil
}

// controlListener returns the socket that the service manager passes on, or makes it.
func (d *daemon) controlListener() (net.Listener, error) {
	f := d.Sockets["control"]
	if f == nil {
		path := filepath.Join(d.Config.Paths.Run, controlSocket)
		if c, err := net.Dial("unix", path); err == nil { // Listen would remove it
			c.Close()
			return nil, fmt.Errorf("listen on %s: another process serves it: set another paths.run", path)
		}
		return control.Listen(path)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take the control socket: %w", err)
	}
	return l, nil
}

// serveMetrics serves the socket of the metrics, where the service manager passes one on.
func (d *daemon) serveMetrics(ctx context.Context, ready func()) error {
	ready()
	if f := d.Sockets["metrics"]; f != nil {
		l, err := net.FileListener(f)
		if err == nil {
			err = d.control.ServeMetrics(ctx, l)
		}
		d.unserved("metrics not served", err)
	}
	<-ctx.Done()
	return nil
}

// unserved logs why a socket is not served.
func (d *daemon) unserved(message string, err error) {
	if err != nil {
		d.Log.Error(message, "err", err)
	}
}
