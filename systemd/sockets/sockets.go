// SPDX-License-Identifier: Apache-2.0

// Package sockets returns the sockets that systemd passes to the daemon. The package is separate from package systemd because
// go-systemd/activation depends on TLS, which no helper needs.
package sockets

import (
	"fmt"
	"net"
	"os"

	"github.com/coreos/go-systemd/v22/activation"
)

// Passed returns the descriptors that the service manager has passed. The keys of the map are the names from FileDescriptorName=.
// The caller owns the descriptors. Each call returns the same descriptors.
func Passed() map[string]*os.File {
	sockets := make(map[string]*os.File)
	for name, files := range activation.FilesWithNames() {
		sockets[name] = files[0]
	}
	return sockets
}

// Listening maps paths to the listening sockets that the service manager has passed.
type Listening map[string]net.Listener

// Listeners returns the listening sockets that the service manager has passed.
func Listeners() Listening {
	all, _ := activation.Listeners() // the error is always nil
	by := make(Listening)
	for _, l := range all {
		if l != nil {
			by[l.Addr().String()] = l
		}
	}
	return by
}

// Listen returns the socket that systemd has passed for a path, or an error if there is none.
func (l Listening) Listen(path string) (net.Listener, error) {
	if l[path] == nil {
		return nil, fmt.Errorf("systemd has not passed the socket %s", path)
	}
	return l[path], nil
}
