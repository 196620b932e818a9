// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"net"
	"os"
	"strings"
	"sync"

	"github.com/metalplug/metalplug/internal/clients"
)

// Parked keeps a connection from the kubelet open while another plugin serves the resource. The connection stays open even after
// the endpoint has ended. Before Kubernetes 1.37, the kubelet would mistake the end of this connection for the end of the other
// plugin. The service manager keeps a copy of the descriptor for the next process. The methods of Parked are safe for concurrent
// use. The zero value holds no connection.
type Parked struct {
	Store  func(name string, f *os.File) error // passes a copy to the service manager
	Remove func(name string) error             // makes the service manager close its copy

	mu    sync.Mutex
	files map[string]*os.File // keys are the names in the service manager
}

// parkedPrefix is the prefix of the names of all connections.
const parkedPrefix = "held-"

// Take takes over the descriptors that an earlier process stored in the service manager.
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

// park keeps a connection of a resource open, unless c is nil. The error means that the service manager cannot store a copy.
func (p *Parked) park(resource string, c *clients.Client) error {
	if p.Store == nil || c == nil {
		return nil
	}
	f, err := c.Conn.(*net.UnixConn).File()
	if err != nil {
		return nil // the connection has ended
	}
	p.drop(resource)
	p.mu.Lock()
	defer p.mu.Unlock()
	name := parkedPrefix + resourceHash(resource)
	p.files[name] = f
	return p.Store(name, f)
}

// drop closes the parked connection of a resource, and reports whether there was one.
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
	_ = p.Remove(name) // Remove fails only if nothing was stored
	return true
}

// has reports whether a connection of a resource is parked.
func (p *Parked) has(resource string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files[parkedPrefix+resourceHash(resource)] != nil
}
