// SPDX-License-Identifier: Apache-2.0

// Package cdi writes the CDI specs of the offered devices. Each resource with inject = "cdi" has a file, in which the
// container runtime looks up the device nodes for a CDI name.
//
// A container is given a name only while the file describes the device correctly. The content of a file depends only on
// the newest snapshot, so the file can be written again at any time. Whether a resource has a file depends on the
// configuration. A resource with inject = "nodes" has none.
package cdi

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// retry is the delay after a failure before a spec is written again.
const retry = 5 * time.Second

// Specs holds the specs of all resources. Its methods are safe for concurrent use.
type Specs struct {
	Dir       string // directory in which the container runtime looks for specs
	Inventory *inventory.Inventory
	Host      *device.Host
	Log       *slog.Logger

	mu     sync.Mutex
	specs  map[string]*spec // keys are resource names
	pruned uint64           // version of the snapshot that the specs of claims were last compared with
}

// Set sets the resources, and removes the files of all other resources. The next [Specs.Update] writes the files of these
// resources.
func (s *Specs) Set(resources []config.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted, files := make(map[string]*spec), make(map[string]bool)
	for _, r := range resources {
		if !r.NeedsSpec() {
			continue
		}
		sp := &spec{resource: r, file: filepath.Join(s.Dir, fileName(r.Name))}
		if old := s.specs[r.Name]; old != nil {
			sp.written, sp.err = old.written, old.err
		}
		wanted[r.Name], files[sp.file] = sp, true
	}
	s.specs = wanted
	found, _ := filepath.Glob(filepath.Join(s.Dir, prefix+"*"+suffix)) // Glob fails only for an invalid pattern
	for _, file := range found {
		if files[file] {
			continue
		}
		if err := os.Remove(file); err != nil {
			s.Log.Warn("CDI spec not removed", "err", err)
		}
	}
}

// Run keeps the files up to date until ctx ends. It calls ready immediately, before it has written any file. A caller
// that needs the files earlier must call Update.
func (s *Specs) Run(ctx context.Context, ready func()) error {
	ready()
	for {
		_, changed := s.Inventory.Snapshot() // taken before Update, so that no later change is missed
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

// Update writes the files for the newest snapshot. It does nothing before the first complete snapshot. If a file cannot
// be written, Update logs the error and returns false.
func (s *Specs) Update() (ok bool) {
	select {
	case <-s.Inventory.Ready():
	default:
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, _ := s.Inventory.Snapshot()
	err := s.pruneClaims(snapshot)
	if ok = err == nil; !ok {
		s.Log.Error("CDI spec not written", "err", err)
	}
	for name, sp := range s.specs {
		ok = s.put(sp, snapshot.Offer(name)) == nil && ok
	}
	return ok
}

// put writes a file that describes an offer. It does not log the same error twice in a row.
func (s *Specs) put(sp *spec, offer *inventory.Offer) error {
	if sp.err == nil && sp.written != nil && sp.version == offer.Version {
		return nil
	}
	d := make(description)
	// Unhealthy devices are included. Absent devices are not, because another device may now have their device numbers.
	for _, device := range slices.Concat(offer.Devices, offer.Members) {
		if nodes := s.nodes(sp.resource, device); len(nodes) > 0 {
			d[device.Device.ID] = nodes
		}
	}
	before := sp.err
	sp.version, sp.err = offer.Version, sp.put(d)
	switch {
	case sp.err == nil && before != nil:
		s.Log.Info("CDI spec written", "resource", sp.resource.Name)
	case sp.err != nil && (before == nil || before.Error() != sp.err.Error()):
		s.Log.Error("CDI spec not written", "resource", sp.resource.Name, "err", sp.err)
	}
	return sp.err
}

// Unwritten returns an error for each spec that could not be written, by resource. It may block while a file is being
// written.
func (s *Specs) Unwritten() map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]error)
	for name, sp := range s.specs {
		if sp.err != nil {
			all[name] = sp.err
		}
	}
	return all
}

// Names returns the CDI names of a resource's devices. If the file does not describe the devices correctly, Names writes
// it first, which takes some time. It returns an error if the file cannot be written.
func (s *Specs) Names(resource string, devices []*inventory.Status) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.specs[resource]
	if sp == nil {
		return nil, fmt.Errorf("%s has no CDI spec any more: the configuration was reloaded", resource)
	}
	if _, err := os.Stat(sp.file); err != nil {
		sp.written = nil
	}
	if !s.describes(sp, devices) {
		snapshot, _ := s.Inventory.Snapshot()
		sp.version = 0
		if err := s.put(sp, snapshot.Offer(resource)); err != nil {
			return nil, fmt.Errorf("write the CDI spec of %s: %w", resource, err)
		}
	}
	if !s.describes(sp, devices) {
		return nil, fmt.Errorf("the CDI spec of %s does not describe all allocated devices: the hardware has just changed", resource)
	}
	return Names(Kind(resource), devices), nil
}

// describes reports whether the file describes all of these devices correctly.
func (s *Specs) describes(sp *spec, devices []*inventory.Status) bool {
	return !slices.ContainsFunc(devices, func(d *inventory.Status) bool {
		nodes := s.nodes(sp.resource, d)
		return len(nodes) == 0 || !slices.Equal(nodes, sp.written[d.Device.ID])
	})
}
