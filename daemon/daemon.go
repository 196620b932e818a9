// SPDX-License-Identifier: Apache-2.0

// Package daemon starts the parts of metalplugd, supervises them, and stops them together.
package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/helper"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/systemd"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// checkInterval is the interval at which the daemon enumerates all devices, in case an event was lost.
const checkInterval = 5 * time.Minute

// Options configures a daemon.
type Options struct {
	Config config.Config
	File   string                        // absolute path of the main configuration file for messages, or empty
	Load   func() (config.Config, error) // loads the configuration when a reload is requested
	Reload <-chan os.Signal              // each signal requests a reload; if nil, the daemon cannot reload
	Log    *slog.Logger
	// Sockets contains the descriptors that the service manager has passed. The keys are "uevent", "kmsg", "control", "claims",
	// "metrics", and the names of descriptors that an earlier process has stored in the service manager.
	Sockets map[string]*os.File
	Version string   // version of metalplugd, for the status
	preview *preview // set if the daemon runs for [Preview], without a kubelet
	// If Touch is not nil, the daemon uses it in place of the configured helpers.
	Touch *device.Touch
	// If Watching is not nil, the daemon calls it with the inventory before any task runs. A caller can use it to observe the
	// inventory.
	Watching func(*inventory.Inventory)
}

// daemon connects the running parts of metalplugd.
type daemon struct {
	Options
	host        *device.Host
	source      udev.Source
	started     time.Time
	inventory   *inventory.Inventory
	watch       *plugin.Watch
	parked      *plugin.Parked
	specs       *cdi.Specs
	turnover    *turnover.Turnover
	audit       *audit.Log
	endpoints   *endpoints
	pods        chan struct{} // has a buffer of one, which is full if a pod has ended or received devices since the last query
	control     *control.Server
	claims      *claims
	config      atomic.Pointer[config.Config] // current configuration, including reloads
	configMount mount                         // mount of the configuration directory
}

// Run offers this node's hardware to the kubelet until ctx ends, and then returns nil. If a part of the daemon fails, Run stops
// the other parts and returns the error. The error is a [config.Problems] if the recording that the configuration names cannot be
// opened.
func Run(ctx context.Context, o Options) error {
	unlock, err := lockPaths(o.Config.Paths)
	if err != nil {
		return err
	}
	defer unlock()
	d := &daemon{Options: o, started: time.Now(), pods: make(chan struct{}, 1)}
	closeSource, err := d.open()
	if err != nil {
		return err
	}
	defer closeSource()
	d.build()
	d.configMount = newMount(o.Config.Paths.Proc, "the configuration", filepath.Dir(o.File))
	defer d.audit.Close()
	if o.Watching != nil {
		o.Watching(d.inventory)
	}
	context.AfterFunc(ctx, func() { d.notify(systemd.Stopping()) })
	return runTasks(ctx, d.tasks(), d.ready)
}

// open opens the device source, which is either this node's udev or a recording.
func (d *daemon) open() (closeSource func(), err error) {
	paths := d.Config.Paths
	if file := d.Config.Hardware.Recording; file != "" {
		s, err := recording.Open(file)
		if err != nil {
			return nil, d.Config.Unusable(err)
		}
		s.Warn = func(err error) { d.Log.Warn("recording not reloaded", "err", err) }
		d.source = s
		d.host = &device.Host{Tree: sysfs.At(s.Root())}
		return func() { s.Close() }, nil
	}
	s, err := udev.Open(udev.Options{Socket: d.Sockets["uevent"], KernelLog: d.Sockets["kmsg"], Proc: paths.Proc, Cgroup: paths.Cgroup})
	if err != nil {
		return nil, d.explainSocket(err)
	}
	if err := s.KernelLog(); err != nil {
		if len(d.Sockets) > 0 && d.Sockets["kmsg"] == nil {
			err = errors.New("systemd passed no kernel log, because OpenFile= requires systemd 253")
		}
		d.Log.Warn("kernel log not read", "err", fmt.Errorf("faults in drivers' log messages, such as an Xid, are not detected: %w", err))
	}
	if !s.Running() {
		d.Log.Warn("udevd is not running", "reason", "no hotplug events arrive, so metalplugd enumerates all devices every few seconds")
	}
	d.source = s
	d.host = &device.Host{
		Tree: sysfs.Tree{Sys: paths.Sysfs, Dev: paths.Dev, Proc: paths.Proc}, Touch: helper.Touch(d.Config.Reset, paths.Sysfs, d.File),
	}
	return func() { s.Close() }, nil
}

// explainSocket adds a remedy to err if systemd has not passed the event socket. systemd may omit the socket, for example, if the
// unit was changed while it was active. The unit's sandbox does not allow metalplugd to open an event socket itself.
func (d *daemon) explainSocket(err error) error {
	if len(d.Sockets) == 0 || d.Sockets["uevent"] != nil {
		return err
	}
	return fmt.Errorf("%w: systemd did not pass metalplugd-uevent.socket; systemctl stop metalplugd && systemctl start metalplugd", err)
}

func (d *daemon) build() {
	d.config.Store(&d.Config)
	if d.Touch != nil {
		d.host.Touch = *d.Touch
	}
	d.inventory = inventory.New(inventory.Options{
		Source:            d.source,
		Host:              d.host,
		Rules:             d.Config.Rules(),
		Store:             statefile.Open(d.Config.Paths.State, d.Log),
		Machine:           systemd.MachineID(),
		CheckpointDevices: d.checkpointDevices(),
		Audit:             checkInterval,
		Log:               d.Log,
	})
	d.audit = audit.Open(d.Config.Paths.State, d.Log)
	d.turnover = &turnover.Turnover{
		Inventory: d.inventory, Host: d.host, Log: d.Log, Audit: d.audit,
		Configured: func(resource string) (config.Resource, bool) { return d.config.Load().Resource(resource) },
		Running:    d.running,
		Owners:     func() (map[string][]string, error) { return kubelet.Owners(d.Config.Paths.DevicePlugins) },
	}
	// If the hardware is simulated from a recording, vendor units are not run, because they could not find the hardware.
	if d.Config.Hardware.Recording == "" {
		d.turnover.Unit = helper.Unit(d.Config.Reset, d.File)
	}
	d.watch = &plugin.Watch{Dir: d.Config.Paths.DevicePlugins, Log: d.Log}
	d.parked = &plugin.Parked{Store: systemd.Store, Remove: systemd.Remove}
	d.parked.Take(d.Sockets)
	d.specs = &cdi.Specs{Dir: d.Config.Paths.CDI, Inventory: d.inventory, Host: d.host, Log: d.Log}
	d.specs.Set(d.Config.Resources)
	d.claims = &claims{daemon: d, working: make(map[string]*preparation), calls: make(map[*api.ClaimRef]context.CancelCauseFunc)}
	d.control = d.newControl()
	d.turnover.Done = d.control.CountReset
	d.endpoints = &endpoints{onChange: d.control.Changed, create: d.endpoint, changed: make(chan struct{}, 1)}
}

// running reports whether any of a pod's processes is still running. The error is [cgroup.ErrNoKubepods] if no pod on the node
// has a cgroup. If paths.cgroup is empty, running checks nothing and returns false.
func (d *daemon) running(pod string) (bool, error) {
	root := d.Config.Paths.Cgroup
	if root == "" {
		return false, nil
	}
	running, err := cgroup.Populated(root, pod)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", cgroup.ErrNoKubepods, err)
	}
	return running, err
}

// checkpointDevices returns the devices that pods hold according to the kubelet's checkpoint.
func (d *daemon) checkpointDevices() map[string]map[string]kubelet.Known {
	devices, err := kubelet.CheckpointDevices(d.Config.Paths.DevicePlugins)
	if err != nil {
		d.Log.Warn("kubelet checkpoint not read", "err", err)
	}
	return devices
}

// endpoint creates a resource's endpoint.
func (d *daemon) endpoint(r config.Resource) *plugin.Endpoint {
	return &plugin.Endpoint{
		Resource:  pluginResource(d, r),
		Dir:       d.Config.Paths.DevicePlugins,
		Inventory: d.inventory,
		Host:      d.host,
		Watch:     d.watch,
		Parked:    d.parked,
		Counted: func(ctx context.Context) ([]string, error) {
			counted, err := kubelet.Allocatable(ctx, d.Config.Paths.PodResources)
			return counted[r.Name], err
		},
		Log:       d.Log,
		Metrics:   d.control.Endpoints(),
		Allocated: d.noteAllocated,
		Start:     d.turnover.Start,
	}
}

// pluginResource converts a resource to the form that an endpoint serves.
func pluginResource(d *daemon, r config.Resource) plugin.Resource {
	resource := plugin.Resource{
		Name: r.Name, Shares: r.Shares, Spread: r.Prefer == config.Spread, Permissions: r.Permissions,
		Optional: r.Optional, Yields: r.Yields(), Variable: r.Variable(), Env: r.Env, CDI: d.cdiNames(r),
	}
	if r.Members != nil {
		resource.Member = func(name string) (plugin.Resource, error) {
			member, ok := d.config.Load().Resource(name)
			if !ok {
				return plugin.Resource{}, fmt.Errorf("resource %s is no longer configured", name)
			}
			return pluginResource(d, member), nil
		}
	}
	return resource
}

// tasks returns the daemon's parts, in the order in which they start. No resource is served before the inventory is complete.
func (d *daemon) tasks() []task {
	all := []task{
		{"control socket", d.serveSocket("control", "control socket not served", d.listenControl, d.control.Serve)},
		{"claims socket", d.serveSocket("claims", "claims not served", nil, d.control.ServeClaims)},
		{"metrics", d.serveSocket("metrics", "metrics not served", nil, d.control.ServeMetrics)},
		{"release times", d.control.TimeReleases},
		{"inventory", func(ctx context.Context, ready func()) error {
			ready() // called immediately, because the endpoints themselves wait until the inventory is complete
			return d.inventory.Run(ctx)
		}},
		{"CDI specs", d.specs.Run},
		{"turnover", d.turnover.Run},
		{"claims", d.claims.Run},
		{"memory", d.returnMemory},
	}
	if d.preview != nil {
		return append(all, task{"preview", d.allocate})
	}
	return append(all, []task{
		{"kubelet directory watch", d.watch.Run},
		{"mounts", d.watchMounts},
		{"endpoints", d.serve},
		{"holders", d.askHolders},
		{"pods", d.watchPods},
		{"status", d.reportStatus},
		{"watchdog", d.pingWatchdog},
	}...)
}

func (d *daemon) ready() {
	d.Log.Info("ready", "duration", time.Since(d.started))
	d.notify(systemd.Ready())
	if d.preview != nil {
		_ = json.NewEncoder(d.preview.out).Encode(d.preview.Preview) // fails only if the reader of the answer has ended
	}
}

func (d *daemon) notify(err error) {
	if err != nil {
		d.Log.Warn("service manager not reached", "err", err)
	}
}

// serve starts the endpoints when the inventory is complete and the CDI specs are written. The specs must exist first, because
// once an endpoint has registered, the kubelet may start a container with CDI names from before a reboot. serve reloads the
// configuration on each signal.
func (d *daemon) serve(ctx context.Context, ready func()) error {
	select {
	case <-d.inventory.Ready():
	case <-ctx.Done():
		return nil
	}
	d.specs.Update()
	d.endpoints.apply(ctx, d.Config.Resources, ready)
	for {
		select {
		case <-ctx.Done():
			d.endpoints.apply(ctx, nil, func() {})
			return nil
		case <-d.Reload:
			d.notify(systemd.Reloading())
			d.reload(ctx)
			d.notify(systemd.Ready())
		}
	}
}

// task is a part of the daemon that runs until the daemon stops.
type task struct {
	name string
	// run does the task's work until ctx ends. run calls ready once, as soon as other tasks can rely on this task. If run returns
	// before ctx ends, the daemon stops, even if there was no error.
	run func(ctx context.Context, ready func()) error
}

// runTasks runs the tasks until ctx ends or a task ends. runTasks calls allReady when all tasks have called ready. When one task
// ends, runTasks stops the others and waits for them. runTasks returns the error of the task that ended first.
func runTasks(parent context.Context, tasks []task, allReady func()) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var running, starting sync.WaitGroup
	starting.Add(len(tasks))
	for _, t := range tasks {
		running.Go(func() {
			ready := sync.OnceFunc(starting.Done)
			defer ready()
			err := t.run(ctx, ready)
			if ctx.Err() == nil && err == nil {
				err = errors.New("ended unexpectedly")
			}
			if err != nil {
				cancel(fmt.Errorf("%s: %w", t.name, err))
			}
		})
	}
	starting.Wait()
	if ctx.Err() == nil {
		allReady()
	}
	running.Wait()
	if parent.Err() != nil {
		return nil // after ctx has ended, task errors are ignored
	}
	return context.Cause(ctx)
}
