// SPDX-License-Identifier: Apache-2.0

// Package cdi keeps the CDI specs of what is offered: for each resource whose devices containers get by name, a file in
// which the container runtime finds what is behind the names.
//
// A name is given out only while the file describes the device as it is. A file is a function of the newest snapshot, so it can
// be made again at any time. Where a reload ends the use of names, the file goes on describing the devices that pods hold:
// the kubelet hands out the names of a running pod again at each restart of a container.
package cdi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// retry is how often a spec that could not be written is tried again.
const retry = 5 * time.Second

// Specs are the specs of all resources. The methods are safe for concurrent use.
type Specs struct {
	Dir       string // where the container runtime looks for them
	Inventory *inventory.Inventory
	Host      *device.Host
	Log       *slog.Logger

	mu    sync.Mutex
	specs map[string]*spec // by resource
	swept bool             // the files of other resources were removed

	unwritten sync.Map // by resource: why its spec could not be written
}

// Set makes these the resources. The files follow at the next [Specs.Update].
func (s *Specs) Set(resources []config.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.specs == nil {
		s.specs = make(map[string]*spec)
	}
	for _, sp := range s.specs {
		sp.wanted, sp.version = false, 0
	}
	for _, r := range resources {
		sp := s.specs[r.Name]
		if sp == nil {
			sp = &spec{file: filepath.Join(s.Dir, fileName(r.Name)), given: make(map[string]bool)}
			if !r.NeedsSpec() && !ours(sp.file) {
				continue // no container has got a name of it
			}
			s.specs[r.Name] = sp
		}
		sp.resource, sp.wanted = r, r.NeedsSpec()
	}
}

// Run keeps the files up to date until ctx ends. ready is called at once: who needs the files first calls Update.
func (s *Specs) Run(ctx context.Context, ready func()) error {
	ready()
	select {
	case <-s.Inventory.Ready():
	case <-ctx.Done():
		return nil
	}
	for {
		_, changed := s.Inventory.Snapshot() // first the channel: what changes from here on is not missed
		var again <-chan time.Time
		if !s.Update() {
			again = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// Update makes the files those of the newest snapshot; before the first complete one it does nothing. What does not
// succeed is logged, once; ok is false then.
func (s *Specs) Update() (ok bool) {
	select {
	case <-s.Inventory.Ready():
	default:
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, _ := s.Inventory.Snapshot()
	ok = true
	for name, sp := range s.specs {
		offer := snapshot.Offer(name)
		switch {
		case !s.put(sp, offer):
			ok = false
		case !sp.wanted && len(sp.given) == 0 && !held(offer):
			delete(s.specs, name)
		}
	}
	if !s.swept {
		s.sweep()
		s.swept = true
	}
	return ok
}

func held(o *inventory.Offer) bool {
	return slices.ContainsFunc(o.Devices, func(d *inventory.Status) bool { return d.Held() })
}

// put makes the file of a resource describe an offer.
func (s *Specs) put(sp *spec, offer *inventory.Offer) (ok bool) {
	if sp.err == nil && sp.version == offer.Version && sp.version != 0 && sp.intact() {
		return true
	}
	before := sp.err
	sp.version, sp.err = offer.Version, sp.put(s.describe(sp, offer.Devices))
	switch {
	case sp.err != nil && (before == nil || before.Error() != sp.err.Error()):
		s.unwritten.Store(sp.resource.Name, sp.err)
		s.Log.Error("CDI spec not written", "resource", sp.resource.Name, "err", sp.err)
	case sp.err == nil && before != nil:
		s.unwritten.Delete(sp.resource.Name)
		s.Log.Info("CDI spec written", "resource", sp.resource.Name)
	}
	return sp.err == nil
}

// Unwritten returns why the specs of resources could not be written, by resource. It does not block.
func (s *Specs) Unwritten() map[string]error {
	all := make(map[string]error)
	s.unwritten.Range(func(resource, err any) bool {
		all[resource.(string)] = err.(error)
		return true
	})
	return all
}

// Names returns the CDI names of devices of a resource. If the file does not describe them as they are, it is made anew
// first, which takes as long as writing it does. The error is why it still does not.
func (s *Specs) Names(resource string, devices []*inventory.Status) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.specs[resource]
	if sp == nil || !sp.wanted {
		return nil, fmt.Errorf("%s has no CDI spec any more: the configuration was reloaded", resource)
	}
	if !s.describes(sp, devices) {
		snapshot, _ := s.Inventory.Snapshot()
		sp.version = 0
		s.put(sp, snapshot.Offer(resource))
	}
	if sp.err != nil {
		return nil, fmt.Errorf("write the CDI spec of %s: %w", resource, sp.err)
	}
	if !s.describes(sp, devices) {
		return nil, fmt.Errorf("the CDI spec of %s does not describe all of them: the hardware has just changed", resource)
	}
	for _, d := range devices {
		sp.given[d.Device.ID] = true
	}
	return Names(Kind(resource), devices), nil
}

// describes tells whether the file is on disk and says of all these devices what is the case.
func (s *Specs) describes(sp *spec, devices []*inventory.Status) bool {
	return sp.err == nil && sp.intact() && !slices.ContainsFunc(devices, func(d *inventory.Status) bool {
		nodes := s.nodes(sp.resource, d)
		return len(nodes) == 0 || !slices.Equal(nodes, sp.written[d.Device.ID])
	})
}

// sweep removes our files of resources that are not known any more, and what a crash has left behind.
func (s *Specs) sweep() {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return // whatever is in it, no runtime reads it either
	}
	known := make(map[string]bool, len(s.specs))
	for name := range s.specs {
		known[fileName(name)] = true
	}
	for _, e := range entries {
		name, file := e.Name(), filepath.Join(s.Dir, e.Name())
		half := strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix+".new") // of a crash
		whole := strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) && !known[name] && ours(file)
		if !half && !whole {
			continue
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.Log.Warn("CDI spec not removed", "err", err)
		}
	}
}
