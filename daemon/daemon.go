// SPDX-License-Identifier: Apache-2.0

// Package daemon starts the parts of metalplugd, watches over them, and stops them together.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/systemd"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

const (
	// audit is how often everything is enumerated in case an event was lost.
	audit = 5 * time.Minute
	// auditBlind is how often without udevd, when no event will ever come.
	auditBlind = 5 * time.Second
)

// startRest is how long after the start the memory that it took is given back, most of which was for the enumeration.
const startRest = 2 * time.Second

// Options are what a daemon is made of.
type Options struct {
	Config   config.Config
	Load     func() (config.Config, error) // reads the configuration anew, for a reload; nil: there is none
	Reload   <-chan os.Signal              // each signal asks for a reload; may be nil
	Log      *slog.Logger
	Notifier systemd.Notifier
	Sockets  map[string]*os.File // passed on by the service manager: "uevent", "kmsg"
	// Watching, if not nil, is called with the inventory before anything runs, for whoever wants to watch it.
	Watching func(*inventory.Inventory)
}

// daemon is the running parts.
type daemon struct {
	Options
	host      *device.Host
	source    udev.Source
	started   time.Time
	blind     bool // no event will come
	inventory *inventory.Inventory
	watch     *plugin.Watch
	specs     *cdi.Specs
	endpoints *endpoints
}

// Run serves the hardware of this machine to the kubelet until ctx ends. The error is that of the part which failed, or
// nil after ctx ended.
func Run(ctx context.Context, o Options) error {
	unlock, afterBoot, err := lock(o.Config.Paths.Run)
	if err != nil {
		return err
	}
	defer unlock()
	d := &daemon{Options: o, started: time.Now()}
	closeSource, err := d.open()
	if err != nil {
		return err
	}
	defer closeSource()
	d.build(afterBoot)
	if o.Watching != nil {
		o.Watching(d.inventory)
	}
	context.AfterFunc(ctx, func() { d.notify(d.Notifier.Stopping()) })
	return runTasks(ctx, d.tasks(), d.ready)
}

// open opens the source of the devices: this machine's udev or a recording.
func (d *daemon) open() (closeSource func(), err error) {
	paths := d.Config.Paths
	if file := d.Config.Hardware.Recording; file != "" {
		s, err := recording.Open(file)
		if err != nil {
			return nil, err
		}
		s.Warn = func(err error) { d.Log.Warn("recording not taken over", "err", err) }
		d.source = s
		d.host = &device.Host{
			Sys: filepath.Join(s.Root(), "sys"), Dev: filepath.Join(s.Root(), "dev"), Proc: filepath.Join(s.Root(), "proc"),
		}
		return func() { s.Close() }, nil
	}
	s, err := udev.Open(udev.Options{Socket: d.Sockets["uevent"], KernelLog: d.Sockets["kmsg"], Proc: paths.Proc})
	if err != nil {
		return nil, err
	}
	if err := s.KernelLog(); err != nil {
		d.Log.Warn("kernel log not read", "err", fmt.Errorf("what drivers only log is not noticed: %w", err))
	}
	if d.blind = !s.Running(); d.blind {
		d.Log.Warn("udevd is not running", "err", fmt.Errorf("no hotplug event will come: looking every %v", auditBlind))
	}
	d.source = s
	d.host = &device.Host{Sys: paths.Sysfs, Dev: paths.Dev, Proc: paths.Proc}
	return func() { s.Close() }, nil
}

func (d *daemon) build(afterBoot bool) {
	interval := audit
	if d.blind {
		interval = auditBlind
	}
	d.inventory = inventory.New(inventory.Options{
		Source:     d.source,
		Host:       d.host,
		Rules:      d.Config.Rules(),
		Store:      inventory.OpenStore(d.Config.Paths.State, d.Log),
		AfterBoot:  afterBoot,
		Remembered: d.remembered(),
		Audit:      interval,
		Log:        d.Log,
	})
	d.watch = &plugin.Watch{Dir: d.Config.Paths.DevicePlugins, Log: d.Log}
	d.specs = &cdi.Specs{Dir: d.Config.Paths.CDI, Inventory: d.inventory, Host: d.host, Log: d.Log}
	d.specs.Set(described(d.Config.Resources))
	d.endpoints = &endpoints{make: d.endpoint, changed: make(chan struct{}, 1), begun: make(chan struct{})}
}

// remembered returns what the kubelet's checkpoint says its pods hold.
func (d *daemon) remembered() map[string]map[string]int {
	devices, err := plugin.Remembered(d.Config.Paths.DevicePlugins)
	if err != nil {
		d.Log.Warn("kubelet checkpoint not read", "err", err)
	}
	return devices
}

// endpoint makes the endpoint of a resource.
func (d *daemon) endpoint(r config.Resource) *plugin.Endpoint {
	return &plugin.Endpoint{
		Resource: plugin.Resource{
			Name: r.Name, Shares: r.Shares, Spread: r.Prefer == config.Spread, Permissions: r.Permissions,
			Optional: r.Optional, Variable: r.Variable(), CDI: d.names(r),
		},
		Dir:       d.Config.Paths.DevicePlugins,
		Inventory: d.inventory,
		Host:      d.host,
		Watch:     d.watch,
		Log:       d.Log,
	}
}

// tasks are the parts, in the order in which they are started. Nothing is served before the inventory is complete.
func (d *daemon) tasks() []task {
	return []task{
		{"kubelet directory watch", d.watch.Run},
		{"inventory", func(ctx context.Context, ready func()) error {
			go func() {
				select {
				case <-d.inventory.Ready():
				case <-ctx.Done():
				}
				ready()
			}()
			return d.inventory.Run(ctx)
		}},
		{"CDI specs", d.specs.Run},
		{"endpoints", d.serve},
		{"holders", d.askHolders},
		{"reload", d.reloads},
		{"status", d.reportStatus},
		{"watchdog", d.pingWatchdog},
	}
}

func (d *daemon) ready() {
	d.Log.Info("ready", "duration", time.Since(d.started))
	d.notify(d.Notifier.Ready())
	time.AfterFunc(startRest, debug.FreeOSMemory)
}

func (d *daemon) notify(err error) {
	if err != nil {
		d.Log.Warn("service manager not reached", "err", err)
	}
}

// serve runs the endpoints once the inventory is complete and the CDI specs are written: as soon as an endpoint is
// registered the kubelet may start a container with names that it was given before a reboot.
func (d *daemon) serve(ctx context.Context, ready func()) error {
	select {
	case <-d.inventory.Ready():
	case <-ctx.Done():
		return nil
	}
	d.specs.Update()
	return d.endpoints.run(ctx, d.Config.Resources, ready)
}

// lock makes sure that no other instance runs on the same directories. The file stays until the machine is booted, when
// /run is emptied: where it is new, this is the first start since.
func lock(dir string) (unlock func(), afterBoot bool, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, false, fmt.Errorf("lock %s: %w", dir, err)
	}
	name := filepath.Join(dir, "metalplugd.lock")
	_, err = os.Lstat(name)
	afterBoot = errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("lock %s: %w", name, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, false, fmt.Errorf("lock %s: another metalplugd is running with the same paths.run: "+
				"stop it, or give this one another", name)
		}
		return nil, false, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { f.Close() }, afterBoot, nil
}
