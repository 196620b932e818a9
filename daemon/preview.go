// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/helper"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// previewLimit is how long a preview waits for the daemon to register all resources, and later for the daemon to learn which pods
// hold devices.
const previewLimit = 20 * time.Second

// preview is a daemon with a simulated kubelet. The command "metalplugctl preview" runs it. A preview never changes a device.
type preview struct {
	api.Preview
	config  config.Config
	kubelet *kubelet.Standin
	client  api.Client
}

// Preview reads an [api.Preview] from the reader in and runs a daemon for it, until in reaches its end or ctx ends. The answer is
// written to out. If an error occurs before the answer is complete, Preview writes an answer that contains only the error, and
// returns the error too.
func Preview(ctx context.Context, o Options, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var p preview
	if err := json.NewDecoder(in).Decode(&p.Preview); err != nil {
		return fmt.Errorf("read the preview request from standard input: %w", err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, in) // Copy returns when the program that requested the preview has ended
		cancel()
	}()
	answered, ended := false, make(chan error, 1)
	o, err := p.configure(ctx, o)
	if err == nil {
		go func() {
			defer cancel()
			ended <- Run(ctx, o)
		}()
		if err = p.allocate(ctx); err == nil && ctx.Err() == nil {
			answered = true
			err = json.NewEncoder(out).Encode(p.Preview)
			<-ctx.Done()
		}
		cancel()
		err = errors.Join(<-ended, err)
	}
	if err != nil && !answered {
		_ = json.NewEncoder(out).Encode(api.Preview{Error: err.Error()}) // fails only if the reader of the answer has ended
	}
	return err
}

// configure starts the simulated kubelet. It returns the options for a daemon that has all its files in one directory.
func (p *preview) configure(ctx context.Context, o Options) (Options, error) {
	c := &o.Config
	c.Hardware.Recording = cmp.Or(p.Recording, c.Hardware.Recording)
	c.Resources = slices.Clone(c.Resources)
	for i := range c.Resources {
		c.Resources[i].Units = config.Units{} // the preview assumes that the units have run
	}
	p.config = *c
	c.Paths.Run, c.Paths.Cgroup = p.Dir, ""
	c.Paths.DevicePlugins, c.Paths.State = filepath.Join(p.Dir, "device-plugins"), filepath.Join(p.Dir, "state")
	c.Paths.PodResources, c.Paths.CDI = filepath.Join(p.Dir, "pods.sock"), filepath.Join(p.Dir, "cdi")
	o.Preview, o.Touch = true, new(device.Touch)
	if c.Hardware.Recording == "" { // helpers read the disks to show whether metalplug would offer them
		o.Touch.Probe = helper.Touch(c.Reset, c.Paths.Sysfs, "").Probe
	}
	p.client.Socket = filepath.Join(p.Dir, controlSocket)
	err := os.Mkdir(c.Paths.DevicePlugins, 0o755)
	if err == nil {
		p.kubelet, err = kubelet.StandIn(ctx, c.Paths.DevicePlugins, c.Paths.PodResources)
	}
	return o, err
}

// allocate waits until all resources are registered, and allocates the requested devices to pods. After that, it waits until the
// daemon knows which devices these pods hold.
func (p *preview) allocate(ctx context.Context) error {
	err := p.await(ctx, func(_ []api.Device, resources []api.Resource) bool {
		return !slices.ContainsFunc(resources, func(r api.Resource) bool {
			return r.Expected() && !(r.Registered && r.Connected && p.kubelet.Knows(r.Name))
		})
	})
	if err != nil {
		return err
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		err := errors.New("the configuration has no such resource")
		if _, ok := p.config.Resource(c.Resource); ok {
			c.Granted, err = p.kubelet.Give(ctx, c.Resource, c.Count)
		}
		if err != nil {
			c.Error = fmt.Sprintf("allocate %d of %s: %v", c.Count, c.Resource, err)
		}
	}
	held := p.kubelet.Pods()
	return p.await(ctx, func(devices []api.Device, _ []api.Resource) bool {
		return !slices.ContainsFunc(devices, func(d api.Device) bool { return held[d.ID] != nil && d.Allocated == nil })
	})
}

// await polls the devices and resources of the daemon and passes them to the given function, until that function returns true or
// ctx ends. After previewLimit, await returns an error.
func (p *preview) await(ctx context.Context, is func(devices []api.Device, resources []api.Resource) bool) error {
	for limit := time.After(previewLimit); ; {
		var status api.Status
		err := p.client.Get(ctx, "/v1/status", &status)
		if err == nil && status.Ready {
			var devices []api.Device
			if err = p.client.Get(ctx, "/v1/devices", &devices); err == nil && is(devices, status.Resources) {
				return nil
			}
		}
		select {
		// This loop must poll, because the control socket may not be served yet, and events do not show which pods hold devices.
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil
		case <-limit:
			return fmt.Errorf("metalplugd is not ready after %v: %w", previewLimit, cmp.Or(err, errors.New("see its log: --log-level debug")))
		}
	}
}
