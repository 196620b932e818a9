// SPDX-License-Identifier: Apache-2.0

// Package preview shows what metalplugd would offer on this machine, or on a recorded one: the daemon itself, served to
// a small device manager in a temporary directory. It needs no kubelet and no cluster, and changes nothing.
package preview

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/systemd"
)

// Options are what is shown, and how.
type Options struct {
	Config   config.Config // what would be offered; its directories are replaced by temporary ones
	Title    string        // of the machine, for the first line
	Allocate []Request     // what a container would ask for
	Out      io.Writer
	Log      *slog.Logger
	JSON     bool   // a JSON object for each state instead of tables
	Live     bool   // go on until ctx ends, showing every change; else show one state
	Empty    string // what is said where no device is offered
	Screen   bool   // Out is a terminal that can be cleared before each state
}

// Request is what a container asks for: "nvidia.com/gpu=2".
type Request struct {
	Resource string
	Count    int
}

// pluginsSize is the longest directory of the device plugins, in bytes, see [config.Paths].
const pluginsSize = 76

// errStopped is the end of the daemon when nobody has asked for it.
var errStopped = errors.New("the daemon stopped by itself")

// Run shows the preview until ctx ends, or once. The error is that of the daemon, or that a request cannot be met.
func Run(ctx context.Context, o Options) error {
	dir, err := os.MkdirTemp("", "metalplug-preview-")
	if err != nil {
		return fmt.Errorf("create a temporary directory: %w: set TMPDIR", err)
	}
	defer os.RemoveAll(dir)
	if err := o.divert(dir); err != nil {
		return fmt.Errorf("preview: %w", err)
	}
	k, err := kubelet.Start(o.Config.Paths.DevicePlugins)
	if err != nil {
		return err
	}
	defer k.Stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := make(chan *inventory.Inventory, 1)
	stopped := make(chan error, 1)
	go func() {
		err := daemon.Run(ctx, daemon.Options{
			Config: o.Config, Log: o.Log, Notifier: systemd.Notifier{Quiet: true},
			Watching: func(i *inventory.Inventory) { found <- i },
		})
		cancel(errors.Join(errStopped, err))
		stopped <- err
	}()
	showErr := o.show(ctx, k, found)
	cancel(nil)
	if err := <-stopped; err != nil {
		return err
	}
	if errors.Is(showErr, unix.EPIPE) { // whoever looked has seen enough
		return nil
	}
	return showErr
}

// divert replaces the directories that are written to by temporary ones.
func (o *Options) divert(dir string) error {
	p := &o.Config.Paths
	p.DevicePlugins, p.State = filepath.Join(dir, "plugins"), filepath.Join(dir, "state")
	p.Run, p.CDI = filepath.Join(dir, "run"), filepath.Join(dir, "cdi")
	p.PodResources = filepath.Join(dir, "pod-resources.sock")
	if n := len(p.DevicePlugins); n > pluginsSize {
		return fmt.Errorf("serve sockets in %s: the path has %d bytes, at most %d are possible: set a shorter TMPDIR",
			p.DevicePlugins, n, pluginsSize)
	}
	return os.Mkdir(p.DevicePlugins, 0o755)
}

// show shows the states. Nothing is shown before the kubelet knows everything that the inventory offers.
func (o *Options) show(ctx context.Context, k *kubelet.Kubelet, found <-chan *inventory.Inventory) error {
	var i *inventory.Inventory
	select {
	case i = <-found:
	case <-ctx.Done():
		return nil
	}
	select {
	case <-i.Ready():
	case <-ctx.Done():
		return nil
	}
	last := ""
	for {
		atKubelet := k.Changed()
		snapshot, atInventory := i.Snapshot()
		s := o.state(k, snapshot)
		if s.caughtUp() {
			if err := o.ask(ctx, k, &s); err != nil && !o.Live {
				return errors.Join(o.draw(s), err)
			}
			text := s.key()
			if text != last {
				last = text
				if err := o.draw(s); err != nil {
					return err
				}
			}
			if !o.Live {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-atKubelet:
		case <-atInventory:
		}
	}
}

// ask makes a container ask for what was requested, and gives it back.
func (o *Options) ask(ctx context.Context, k *kubelet.Kubelet, s *State) error {
	var errs []error
	for _, r := range o.Allocate {
		c, err := k.Allocate(ctx, r.Resource, r.Count)
		if err == nil {
			err = k.PreStart(ctx, r.Resource, c)
			defer k.Release(r.Resource, c)
		}
		if err != nil {
			errs = append(errs, err)
		}
		s.Containers = append(s.Containers, newContainer(r, c, err))
	}
	return errors.Join(errs...)
}
