// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Parked keeps connections of the kubelet open beyond their endpoint, while another plugin serves the resource. A kubelet
// before 1.37 would take their end for the end of the other plugin. The service manager keeps a copy of each for the next
// process. The methods are safe for concurrent use. The zero value keeps nothing.
type Parked struct {
	Store  func(name string, f *os.File) error // gives the service manager a copy
	Remove func(name string) error             // lets the service manager close its copy

	mu    sync.Mutex
	files map[string]*os.File // by the name that the service manager knows
}

// Take takes over those of the descriptors that an earlier process has left with the service manager.
func (p *Parked) Take(passed map[string]*os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files = make(map[string]*os.File)
	for name, f := range passed {
		if strings.HasPrefix(name, parkedPrefix) {
			p.files[name] = f
		}
	}
}

// parkedPrefix begins the names of all connections.
const parkedPrefix = "held-"

// parkedName returns the prefix of the names of a resource's connections.
func parkedName(resource string) string { return parkedPrefix + resourceHash(resource) + "-" }

// park keeps a connection of a resource open, or does nothing for nil. The error is that of the service manager.
func (p *Parked) park(resource string, c *client) error {
	if p.Store == nil || c == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := c.File()
	if err != nil {
		return nil // it has ended
	}
	name := parkedName(resource) + strconv.FormatInt(time.Now().UnixNano(), 36)
	p.files[name] = f
	return p.Store(name, f)
}

// has reports whether a connection of a resource is kept.
func (p *Parked) has(resource string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.files {
		if strings.HasPrefix(name, parkedName(resource)) {
			return true
		}
	}
	return false
}

// drop closes the connections of a resource, and reports whether there were any.
func (p *Parked) drop(resource string) (dropped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, f := range p.files {
		if strings.HasPrefix(name, parkedName(resource)) {
			f.Close()
			delete(p.files, name)
			_ = p.Remove(name) // fails only where nothing was stored
			dropped = true
		}
	}
	return dropped
}
