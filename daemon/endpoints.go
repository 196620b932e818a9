// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/internal/liveness"
)

// endpoints are the endpoints that run, one a resource. A reload touches only those whose resource has changed.
type endpoints struct {
	make    func(config.Resource) *plugin.Endpoint
	changed chan struct{} // one slot, filled when the set has changed
	told    func()        // called when the set, or the registration state of one, has changed, or nil
	begun   chan struct{} // closed once they run, and apply may be called
	last    time.Time     // when an endpoint of a daemon before this one was last registered, or zero if none was since the boot

	mu      sync.Mutex
	running map[string]*running
	served  map[string]bool // the resources that an endpoint has ever served
	failed  chan error
	ctx     context.Context // of all of them
}

// running is an endpoint that runs.
type running struct {
	resource config.Resource
	endpoint *plugin.Endpoint
	cancel   context.CancelFunc
	done     chan struct{} // closed when it has stopped
}

// run runs an endpoint for each resource until ctx ends. It calls ready when each has looked for the kubelet once.
func (e *endpoints) run(ctx context.Context, resources []config.Resource, ready func()) error {
	e.mu.Lock()
	e.ctx, e.failed, e.running, e.served = ctx, make(chan error, 1), make(map[string]*running), make(map[string]bool)
	e.mu.Unlock()
	e.apply(resources, ready)
	close(e.begun)
	defer e.stopAll()
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.failed:
		return err
	}
}

// apply makes the endpoints those of the resources. It starts new ones, stops those that are gone, and restarts those
// that have changed. It calls started when all that were started run.
func (e *endpoints) apply(resources []config.Resource, started func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wanted := make(map[string]config.Resource, len(resources))
	for _, r := range resources {
		wanted[r.Name] = r
	}
	for name, r := range e.running {
		if next, ok := wanted[name]; !ok || !sameService(next, r.resource) {
			r.stop()
			delete(e.running, name)
		}
	}
	var starting sync.WaitGroup
	for _, r := range resources {
		if e.running[r.Name] == nil {
			starting.Add(1)
			before := e.last
			if e.served[r.Name] {
				before = time.Now()
			}
			e.running[r.Name] = e.start(r, before, starting.Done)
			e.served[r.Name] = true
		}
	}
	e.tell()
	go func() {
		starting.Wait()
		started()
	}()
}

// sameService reports whether an endpoint serves a and b in the same way. Their matches are the inventory's concern, and
// the work on a device between two pods that of the turnover.
func sameService(a, b config.Resource) bool {
	a.Match, a.Exclude, a.AllowInUse, a.Reset = nil, nil, false, config.ResourceReset{}
	a.Units, b.Units = config.Units{}, config.Units{}
	b.Match, b.Exclude, b.AllowInUse, b.Reset = nil, nil, false, config.ResourceReset{}
	return reflect.DeepEqual(a, b)
}

func (e *endpoints) start(resource config.Resource, before time.Time, started func()) *running {
	ctx, cancel := context.WithCancel(e.ctx)
	r := &running{resource: resource, endpoint: e.make(resource), cancel: cancel, done: make(chan struct{})}
	r.endpoint.Changed, r.endpoint.Before = e.tell, before
	go func() {
		defer close(r.done)
		started := sync.OnceFunc(started)
		defer started()
		if err := r.endpoint.Run(ctx, started); err != nil {
			select {
			case e.failed <- fmt.Errorf("resource %s: %w", resource.Name, err):
			default: // one failure is enough
			}
		}
	}()
	return r
}

// foreign returns an ID that the kubelet counts and that is none of ours, for each resource that has one.
func (e *endpoints) foreign(counted map[string][]string) map[string]string {
	ids := make(map[string]string)
	for name, endpoint := range e.all() {
		if id := endpoint.Foreign(counted[name]); id != "" {
			ids[name] = id
		}
	}
	return ids
}

// all returns the endpoints that run, by resource.
func (e *endpoints) all() map[string]*plugin.Endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[string]*plugin.Endpoint, len(e.running))
	for name, r := range e.running {
		all[name] = r.endpoint
	}
	return all
}

func (r *running) stop() {
	r.cancel()
	<-r.done
}

func (e *endpoints) stopAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.running {
		r.cancel()
	}
	for _, r := range e.running {
		<-r.done
	}
}

func (e *endpoints) tell() {
	if e.told != nil {
		e.told()
	}
	liveness.Poke(e.changed)
}

// standing returns how each resource stands with the kubelet.
func (e *endpoints) standing() map[string]plugin.Status {
	all := make(map[string]plugin.Status)
	for name, endpoint := range e.all() {
		all[name] = endpoint.Status()
	}
	return all
}

// registered counts the endpoints and those among them that the kubelet is connected to.
func (e *endpoints) registered() (connected, all int) {
	standing := e.standing()
	for _, s := range standing {
		if s.Connected {
			connected++
		}
	}
	return connected, len(standing)
}

// names returns the function by which the endpoint of a resource names devices to the container runtime, or nil.
func (d *daemon) names(r config.Resource) func([]*inventory.Status) ([]string, error) {
	switch {
	case r.Inject != config.InjectCDI:
		return nil
	case r.CDIKind != "":
		return func(devices []*inventory.Status) ([]string, error) { return cdi.Names(r.CDIKind, devices), nil }
	}
	return func(devices []*inventory.Status) ([]string, error) { return d.specs.Names(r.Name, devices) }
}
