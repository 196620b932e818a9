// SPDX-License-Identifier: Apache-2.0

// Package sockets returns the sockets that systemd passes to the daemon. It is separate from package systemd because
// go-systemd/activation links TLS, which no helper needs.
package sockets

import (
	"os"

	"github.com/coreos/go-systemd/v22/activation"
)

// Passed returns the descriptors that the service manager has passed, by FileDescriptorName=. The caller owns them. A
// second call returns the same.
func Passed() map[string]*os.File {
	sockets := make(map[string]*os.File)
	for name, files := range activation.FilesWithNames() {
		sockets[name] = files[0]
	}
	return sockets
}
