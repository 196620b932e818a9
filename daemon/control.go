// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/udev"
)

// controlSocket is the name of the control socket in paths.run. It is fixed: other programs connect to it, and its unit has it.
const controlSocket = "control.sock"

// said is what the parts of the daemon have said last, for whoever asks on the control socket. The parts own what they
// say; here is a copy, so that no request waits for a part that is busy, or stuck.
type said struct {
	mu      sync.Mutex
	at      *time.Time // when the last reload ended
	problem string     // of it
	pending []string   // what of it holds from the next start only
	holders map[string][]control.Holder
}

// reloaded notes how a reload has ended, and what of the new configuration holds from the next start only.
func (s *said) reloaded(pending []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	s.at = &now
	if err != nil { // what was pending is so still
		s.problem = err.Error()
		return
	}
	s.problem, s.pending = "", pending
}

// pods notes which pods hold which device.
func (s *said) pods(by map[string][]plugin.Pod) {
	holders := make(map[string][]control.Holder, len(by))
	for id, pods := range by {
		for _, p := range pods {
			holders[id] = append(holders[id], control.Holder{Namespace: p.Namespace, Pod: p.Name, Container: p.Container})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holders = holders
}

// newControl makes the control socket's side of the daemon. What it is given are functions, since most of what they
// return is not there yet: the endpoints are made after it, for they count with it.
func (d *daemon) newControl() *control.Server {
	return control.New(control.Options{
		Version: d.Version, Source: d.Config.Hardware.Source(), Started: d.started, Inventory: d.inventory, Host: d.host, Log: d.Log,
		Enumerate: d.source.Enumerate, Dropped: d.dropped, Resources: d.resources,
		Rules: d.rules, Where: d.where, Usual: config.BuiltinRules(),
		Configuration: d.configuration, Holders: d.holders, Reset: d.turnover.ByHand, Adopt: d.turnover.Adopt,
		Counted: d.counted, Unwritten: d.unwritten, DevicePlugins: d.Config.Paths.DevicePlugins,
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

// counted asks the kubelet what it counts.
func (d *daemon) counted(ctx context.Context) (control.Counted, error) {
	ids, err := plugin.Allocatable(ctx, d.Config.Paths.PodResources)
	if errors.Is(err, plugin.ErrNotCounted) {
		return control.Counted{Unknown: err.Error()}, nil
	}
	if err != nil {
		return control.Counted{}, err
	}
	counts := make(map[string]int, len(ids))
	for resource, all := range ids {
		counts[resource] = len(all)
	}
	return control.Counted{Allocatable: counts, Foreign: d.endpoints.foreign(ids)}, nil
}

// dropped returns what the source has lost; a recording loses nothing.
func (d *daemon) dropped() udev.Dropped {
	if s, ok := d.source.(*udev.System); ok {
		return s.Dropped()
	}
	return udev.Dropped{}
}

// rules returns the rules as they hold.
func (d *daemon) rules() []device.Rule { return d.config.Load().Rules() }

// where returns where a key of a resource is written.
func (d *daemon) where(resource, key string) string { return d.config.Load().Where(resource, key) }

// configuration returns where the configuration is from.
func (d *daemon) configuration() control.Configuration {
	files := []string{} // absolute: who asks is somewhere else
	for _, name := range d.config.Load().Files {
		if absolute, err := filepath.Abs(name); err == nil {
			name = absolute
		}
		files = append(files, name)
	}
	d.said.mu.Lock()
	defer d.said.mu.Unlock()
	return control.Configuration{
		File: d.File, Files: files, Reloaded: d.said.at, Problem: d.said.problem, Pending: d.said.pending,
	}
}

// holders returns who holds which device; what is returned is never written.
func (d *daemon) holders() map[string][]control.Holder {
	d.said.mu.Lock()
	defer d.said.mu.Unlock()
	return d.said.holders
}

// resources returns the configured resources and how they stand with the kubelet; the caller may write to them.
func (d *daemon) resources() []control.Resource {
	standing, all := d.endpoints.standing(), []control.Resource{}
	for _, r := range d.config.Load().Resources {
		at := standing[r.Name]
		all = append(all, control.Resource{
			Name: r.Name, Class: r.Class.Name, Shares: r.Shares, Inject: r.Inject, Optional: r.Optional,
			Reset: r.Reset.Method, Scrub: r.Reset.Scrub, When: r.Reset.When,
			Registered: at.Registered, Connected: at.Connected, Complaint: at.Complaint, Held: at.Held, Conflict: at.Conflict,
		})
	}
	return all
}
