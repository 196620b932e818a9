// SPDX-License-Identifier: Apache-2.0

// Package cdi writes the CDI specs of the offered devices. Each resource with inject = "cdi" has a spec file, which lists the
// device nodes for each CDI name. The container runtime reads this file.
//
// A container gets a name only while the file describes the device correctly. A file's contents depend only on the newest
// snapshot, so the file can be rewritten at any time. A resource with inject = "nodes" has no file.
package cdi

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// retryInterval is how long Run waits after a failure before it tries again to write the specs.
const retryInterval = 5 * time.Second

// Specs manages all resources' specs. The methods are safe for concurrent use.
type Specs struct {
	Dir       string // directory where the container runtime looks for specs
	Inventory *inventory.Inventory
	Host      *device.Host
	Log       *slog.Logger

	mu            sync.Mutex
	specs         map[string]*spec // keys are resource names
	prunedVersion uint64           // snapshot version in the last call to pruneClaims
}

// Set replaces the list of resources, and removes all other resources' files. The next [Specs.Update] writes the files of new
// resources.
func (s *Specs) Set(resources []config.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.specs = make(map[string]*spec)
	files := make(map[string]bool)
	for _, r := range resources {
		if r.NeedsSpec() {
			file := filepath.Join(s.Dir, fileName(r.Name))
			s.specs[r.Name], files[file] = &spec{resource: r, file: file}, true
		}
	}
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

// Run keeps the files up to date until ctx ends. Run calls the function "ready" before it writes the files. A caller that needs
// the files earlier must first call Update.
func (s *Specs) Run(ctx context.Context, ready func()) error {
	ready()
	for {
		_, changed := s.Inventory.Snapshot() // get the channel before Update; otherwise, a change during Update would be missed
		var again <-chan time.Time
		if !s.Update() {
			again = time.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// Update writes the files for the newest snapshot. Before the first complete snapshot, Update does nothing and returns true. If a
// file cannot be written, Update logs the error and returns false.
func (s *Specs) Update() (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, _ := s.Inventory.Snapshot()
	if snapshot.Version == 0 {
		return true
	}
	err := s.pruneClaims(snapshot)
	if ok = err == nil; !ok {
		s.Log.Error("CDI spec not written", "err", err)
	}
	for name, sp := range s.specs {
		if offer := snapshot.Offer(name); sp.written == nil || sp.offer != offer {
			ok = s.writeSpec(sp, offer) == nil && ok
		}
	}
	return ok
}

// writeSpec writes a resource's spec file for an offer. writeSpec does not log the same error twice in a row.
func (s *Specs) writeSpec(sp *spec, offer *inventory.Offer) error {
	nodes := make(map[string][]*specs.DeviceNode)
	// The file includes Unhealthy devices, but not absent ones, because another device may now have their device numbers.
	for _, d := range slices.Concat(offer.Devices, offer.Members) {
		if found := s.nodes(sp.resource, d); len(found) > 0 {
			nodes[d.Device.ID] = found
		}
	}
	sp.offer = offer
	if sp.written != nil && reflect.DeepEqual(sp.written, nodes) {
		return nil
	}
	content := specs.Spec{Kind: Kind(sp.resource.Name)}
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		content.Devices = append(content.Devices, specs.Device{Name: id, ContainerEdits: specs.ContainerEdits{DeviceNodes: nodes[id]}})
	}
	before := sp.err
	sp.written, sp.err = nil, writeFile(sp.file, content)
	if sp.err == nil {
		sp.written = nodes
	}
	switch {
	case sp.err == nil && before != nil:
		s.Log.Info("CDI spec written", "resource", sp.resource.Name)
	case sp.err != nil && (before == nil || before.Error() != sp.err.Error()):
		s.Log.Error("CDI spec not written", "resource", sp.resource.Name, "err", sp.err)
	}
	return sp.err
}

// Unwritten returns an error for each resource whose spec could not be written. The keys are resource names. Unwritten may block
// while a file is being written.
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

// Names returns the CDI names of a resource's devices. If the spec file does not describe the devices correctly, Names first
// writes the file. Names may therefore block on a slow disk. If the write fails, Names returns an error.
func (s *Specs) Names(resource string, devices []*inventory.Status) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.specs[resource]
	if sp == nil {
		return nil, fmt.Errorf("%s no longer has a CDI spec, because the configuration was reloaded", resource)
	}
	if _, err := os.Stat(sp.file); err != nil {
		sp.written = nil
	}
	if !s.describes(sp, devices) {
		snapshot, _ := s.Inventory.Snapshot()
		if err := s.writeSpec(sp, snapshot.Offer(resource)); err != nil {
			return nil, fmt.Errorf("write the CDI spec of %s: %w", resource, err)
		}
	}
	if !s.describes(sp, devices) {
		return nil, fmt.Errorf("the CDI spec of %s does not describe all allocated devices: the hardware has just changed", resource)
	}
	return Names(Kind(resource), devices), nil
}

// describes reports whether the resource's file describes all given devices correctly.
func (s *Specs) describes(sp *spec, devices []*inventory.Status) bool {
	return !slices.ContainsFunc(devices, func(d *inventory.Status) bool {
		nodes := s.nodes(sp.resource, d)
		return len(nodes) == 0 || !reflect.DeepEqual(nodes, sp.written[d.Device.ID])
	})
}
