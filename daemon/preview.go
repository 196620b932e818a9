// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/helper"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// previewLimit is how long a preview waits for all devices to be inspected.
const previewLimit = 20 * time.Second

// preview makes a daemon run without a kubelet, for the command "metalplugctl preview". A preview never changes a device.
type preview struct {
	api.Preview
	out io.Writer // gets the answer
}

// Preview reads an [api.Preview] from in, runs a daemon for it, and writes the answer to out. Preview returns when the input or
// ctx ends. If the daemon fails before the answer is complete, there is no answer.
func Preview(ctx context.Context, o Options, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := preview{out: out}
	if err := json.NewDecoder(in).Decode(&p.Preview); err != nil {
		return fmt.Errorf("read the preview request from standard input: %w", err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, in) // Copy returns when the program that requested the preview has ended
		cancel()
	}()
	p.configure(&o)
	return Run(ctx, o)
}

// configure changes the options so that the daemon has all its files in one directory.
func (p *preview) configure(o *Options) {
	c := &o.Config
	c.Hardware.Recording = cmp.Or(p.Recording, c.Hardware.Recording)
	c.Resources = slices.Clone(c.Resources)
	for i := range c.Resources {
		c.Resources[i].Units = config.Units{} // the preview assumes that the units have run
	}
	c.Paths.Run, c.Paths.Cgroup = p.Dir, ""
	c.Paths.DevicePlugins, c.Paths.State = filepath.Join(p.Dir, "device-plugins"), filepath.Join(p.Dir, "state")
	c.Paths.PodResources, c.Paths.CDI = filepath.Join(p.Dir, "pods.sock"), filepath.Join(p.Dir, "cdi")
	o.preview, o.Touch = p, new(device.Touch)
	if c.Hardware.Recording == "" { // helpers read the disks to show whether metalplug would offer them
		o.Touch.Probe = helper.Touch(c.Reset, c.Paths.Sysfs, "").Probe
	}
}

// allocate takes the place of the endpoints in a preview. It waits until all devices are inspected, and allocates the requested
// devices to pods.
func (d *daemon) allocate(ctx context.Context, ready func()) error {
	select {
	case <-d.inventory.Ready():
	case <-ctx.Done():
		return nil
	case <-time.After(previewLimit):
		return fmt.Errorf("the devices are not inspected after %v; see the log of metalplugd: --log-level debug", previewLimit)
	}
	d.specs.Update()
	pods := make(map[string][]api.Pod) // keys are IDs of devices and of shares
	for i := range d.preview.Containers {
		c := &d.preview.Containers[i]
		r, ok := d.Config.Resource(c.Resource)
		err := errors.New("the configuration has no such resource")
		if ok && r.Serve == config.ServeDRA {
			err = errors.New("DRA serves this resource; request its devices with a ResourceClaim")
		} else if ok {
			c.Allocation, err = d.endpoint(r).Admit(c.Count, func(id string) bool { return pods[id] != nil })
		}
		if err != nil {
			c.Error = fmt.Sprintf("allocate %d of %s: %v", c.Count, c.Resource, err)
		}
		pod := api.Pod{Namespace: "default", Name: fmt.Sprintf("pod-%d", i+1), Container: "main"}
		for _, id := range c.Devices {
			pods[id] = []api.Pod{pod}
			if parent := checkpoint.Parent(id); parent != id && !slices.Contains(pods[parent], pod) {
				pods[parent] = append(pods[parent], pod)
			}
		}
	}
	d.control.SetHolders(pods)
	for id := range pods { // the inventory publishes an allocation a little later
		_ = d.inventory.Await(ctx, func(snapshot *inventory.Snapshot) bool {
			s := snapshot.Find(id)
			return s == nil || s.Held()
		})
	}
	ready()
	<-ctx.Done()
	return nil
}
