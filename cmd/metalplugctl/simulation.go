// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/helper"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// simulation is metalplugd in this process, with a stand-in for the kubelet. It changes no device.
type simulation struct {
	kubelet *kubelet.Standin
	client  control.Client
}

// simulationLimit is how long all resources may take to register, and the daemon to ask who holds devices.
const simulationLimit = 20 * time.Second

// directoryFor makes a directory for a simulation, an empty one of that name or one of its own for no name. remove removes it, or
// what is in it if it was there before.
func directoryFor(name string) (dir string, remove func(), err error) {
	if name == "" {
		if dir, err = os.MkdirTemp("", "metalplug-"); err != nil {
			return "", nil, fmt.Errorf("create a temporary directory: %w: set TMPDIR", err)
		}
		return dir, func() { os.RemoveAll(dir) }, nil
	}
	if dir, err = filepath.Abs(name); err != nil {
		return "", nil, err
	}
	made := os.Mkdir(dir, 0o755) == nil
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = errors.New("it is not empty")
	}
	if err != nil {
		return "", nil, fmt.Errorf("serve in %s: %w: name a new directory", dir, err)
	}
	return dir, func() {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			os.RemoveAll(filepath.Join(dir, e.Name()))
		}
		if made {
			os.Remove(dir)
		}
	}, nil
}

// simulate runs metalplugd with a configuration until run returns. Its files and sockets are in dir, and the resources are registered
// when run begins.
func simulate(ctx context.Context, c config.Config, dir string, log *slog.Logger, run func(*simulation) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.Resources = slices.Clone(c.Resources)
	for i := range c.Resources {
		c.Resources[i].Units = config.Units{} // as if that had been done
	}
	c.Paths.Run, c.Paths.Cgroup = dir, ""
	c.Paths.DevicePlugins, c.Paths.State = filepath.Join(dir, "device-plugins"), filepath.Join(dir, "state")
	c.Paths.PodResources, c.Paths.CDI = filepath.Join(dir, "pods.sock"), filepath.Join(dir, "cdi")
	if err := os.Mkdir(c.Paths.DevicePlugins, 0o755); err != nil {
		return err
	}
	n := &simulation{client: control.Client{Socket: filepath.Join(dir, "control.sock")}}
	var err error
	if n.kubelet, err = kubelet.StandIn(ctx, c.Paths.DevicePlugins, c.Paths.PodResources); err != nil {
		return err
	}
	touch := new(device.Touch)
	if c.Hardware.Recording == "" { // a disk is read to know whether it would be offered
		touch.Probe = helper.Touch(c.Reset, c.Paths.Sysfs, "").Probe
	}
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- daemon.Run(ctx, daemon.Options{
			Config: c, Touch: touch, Log: log, Version: version,
		})
	}()
	if err = n.await(ctx, n.registered); err == nil && ctx.Err() == nil {
		err = run(n)
	}
	cancel()
	return errors.Join(<-ended, err)
}

// await waits until the daemon is as wanted, or ctx ends.
func (n *simulation) await(ctx context.Context, is func(devices []control.Device, resources []control.Resource) bool) error {
	for limit := time.After(simulationLimit); ; {
		var status control.Status
		err := n.client.Get(ctx, "/v1/status", &status)
		if err == nil && status.Ready {
			var devices []control.Device
			if err = n.client.Get(ctx, "/v1/devices", &devices); err == nil && is(devices, status.Resources) {
				return nil
			}
		}
		select {
		case <-time.After(10 * time.Millisecond): // the socket is not served from the beginning, and no event has the holders
		case <-ctx.Done():
			return nil
		case <-limit:
			return fmt.Errorf("metalplugd is not ready after %v: %w", simulationLimit, cmp.Or(err, errors.New("see its log: --log-level debug")))
		}
	}
}

// registered reports whether the kubelet knows all resources that have devices, or need none.
func (n *simulation) registered(_ []control.Device, resources []control.Resource) bool {
	return !slices.ContainsFunc(resources, func(r control.Resource) bool { return expected(r) && !n.kubelet.Knows(r.Name) })
}

// give allocates the devices that the containers ask for, and waits until the daemon knows their pods. The error is why one gets nothing.
func (n *simulation) give(ctx context.Context, c config.Config, containers []container) error {
	var refused []error
	for i := range containers {
		refused = append(refused, containers[i].ask(ctx, n, c))
	}
	held := n.kubelet.Pods()
	err := n.await(ctx, func(devices []control.Device, _ []control.Resource) bool {
		return !slices.ContainsFunc(devices, func(d control.Device) bool { return held[d.ID] != nil && d.Allocated == nil })
	})
	return errors.Join(append(refused, err)...)
}
