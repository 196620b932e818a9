// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"strings"
	"sync"
)

// Parked keeps a connection of the kubelet open beyond its endpoint, while another plugin serves the resource. A kubelet
// before 1.37 would take its end for the end of the other plugin. The service manager keeps a copy of it for the next
// process. The methods are safe for concurrent use. The zero value keeps nothing.
type Parked struct {
	Store  func(name string, f *os.File) error // gives the service manager a copy
	Remove func(name string) error             // lets the service manager close its copy

	mu    sync.Mutex
	files map[string]*os.File // by the name that the service manager knows
}

// parkedPrefix begins the names of all connections.
const parkedPrefix = "held-"

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

// park keeps a connection of a resource open, or does nothing for nil. The error is that of the service manager.
func (p *Parked) park(resource string, c *client) error {
	if p.Store == nil || c == nil {
		return nil
	}
	f, err := c.File()
	if err != nil {
		return nil // it has ended
	}
	p.drop(resource)
	p.mu.Lock()
	defer p.mu.Unlock()
	name := parkedPrefix + resourceHash(resource)
	p.files[name] = f
	return p.Store(name, f)
}

// drop closes the connection of a resource, and reports whether there was one.
func (p *Parked) drop(resource string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := parkedPrefix + resourceHash(resource)
	f := p.files[name]
	if f == nil {
		return false
	}
	f.Close()
	delete(p.files, name)
	_ = p.Remove(name) // fails only where nothing was stored
	return true
}

// has reports whether a connection of a resource is kept.
func (p *Parked) has(resource string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files[parkedPrefix+resourceHash(resource)] != nil
}
