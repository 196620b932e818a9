// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/internal/liveness"
)

// The type endpoints starts, restarts and stops endpoints. Each resource has one endpoint, unless DRA serves the resource. A
// reload affects only the endpoints of resources that have changed.
type endpoints struct {
	create   func(config.Resource) *plugin.Endpoint
	changed  chan struct{} // has a buffer of one, filled when an endpoint is added or removed, or its registration changes
	onChange func()        // called whenever the channel "changed" is filled
	last     time.Time     // when an endpoint last ended, or zero

	mu      sync.Mutex
	running map[string]*running
}

// running is an endpoint together with the resource that it serves.
type running struct {
	resource config.Resource
	endpoint *plugin.Endpoint
	cancel   context.CancelFunc
	done     chan struct{} // closed when the endpoint has stopped
}

// apply starts endpoints for new resources, restarts those of changed resources, and stops those of removed resources. A resource
// that DRA serves has no endpoint. The endpoints run until ctx ends. apply calls started() when all new endpoints have tried once
// to reach the kubelet.
func (e *endpoints) apply(ctx context.Context, resources []config.Resource, started func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	resources = slices.DeleteFunc(slices.Clone(resources), func(r config.Resource) bool { return r.Serve == config.ServeDRA })
	next := make(map[string]*running, len(resources))
	for _, r := range resources {
		if now := e.running[r.Name]; now != nil && sameService(now.resource, r) {
			next[r.Name] = now
		}
	}
	for name, r := range e.running {
		if next[name] == nil {
			r.cancel()
			<-r.done
			e.last = time.Now()
		}
	}
	var starting sync.WaitGroup
	for _, r := range resources {
		if next[r.Name] == nil {
			starting.Add(1)
			next[r.Name] = e.start(ctx, r, sync.OnceFunc(starting.Done))
		}
	}
	e.running = next
	e.announce()
	go func() {
		starting.Wait()
		started()
	}()
}

// sameService reports whether an endpoint would serve the resources a and b in the same way. sameService ignores the
// configuration keys that no endpoint uses. These keys are match and exclude, which only the inventory uses, and the keys for the
// cleanup between two pods.
func sameService(a, b config.Resource) bool {
	for _, r := range []*config.Resource{&a, &b} {
		r.Match, r.Exclude, r.AllowInUse, r.Reset, r.Units = nil, nil, false, config.ResourceReset{}, config.Units{}
	}
	return reflect.DeepEqual(a, b)
}

func (e *endpoints) start(ctx context.Context, resource config.Resource, started func()) *running {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{resource: resource, endpoint: e.create(resource), cancel: cancel, done: make(chan struct{})}
	r.endpoint.Changed, r.endpoint.Before = e.announce, e.last
	go func() {
		defer close(r.done)
		defer started()
		r.endpoint.Run(ctx, started)
	}()
	return r
}

// foreignIDs returns, for each resource, one device ID that the kubelet counts but metalplug does not offer. The map has no key
// for a resource without such an ID.
func (e *endpoints) foreignIDs(counted map[string][]string) map[string]string {
	ids := make(map[string]string)
	for name, endpoint := range e.all() {
		if id := endpoint.Foreign(counted[name]); id != "" {
			ids[name] = id
		}
	}
	return ids
}

// all returns the running endpoints by resource name.
func (e *endpoints) all() map[string]*plugin.Endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[string]*plugin.Endpoint, len(e.running))
	for name, r := range e.running {
		all[name] = r.endpoint
	}
	return all
}

func (e *endpoints) announce() {
	e.onChange()
	liveness.Poke(e.changed)
}

// registrations returns the registration states of all resources, by resource name.
func (e *endpoints) registrations() map[string]api.Registration {
	all := make(map[string]api.Registration)
	for name, endpoint := range e.all() {
		all[name] = endpoint.Status()
	}
	return all
}

// cdiNames returns the function that an endpoint calls for the devices' CDI names. The function is nil if the resource does not
// use CDI.
func (d *daemon) cdiNames(r config.Resource) func([]*inventory.Status) ([]string, error) {
	switch {
	case r.Inject != config.InjectCDI:
		return nil
	case r.CDIKind != "":
		return func(devices []*inventory.Status) ([]string, error) { return cdi.Names(r.CDIKind, devices), nil }
	}
	return func(devices []*inventory.Status) ([]string, error) { return d.specs.Names(r.Name, devices) }
}
