// SPDX-License-Identifier: Apache-2.0

// Package exchangetest simulates the service manager's helper sockets in tests.
package exchangetest

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Listen listens at a path until the test ends, and serves each connection separately, like the service manager for a
// socket with Accept=yes. The descriptor is closed when serve returns.
func Listen(t testing.TB, path string, serve func(fd int)) {
	t.Helper()
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: path}), unix.Listen(l, 16)); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
			if err != nil {
				return // the listener was shut down
			}
			all.Go(func() {
				defer unix.Close(fd)
				serve(fd)
			})
		}
	})
	t.Cleanup(func() {
		unix.Shutdown(l, unix.SHUT_RDWR)
		all.Wait()
		unix.Close(l)
	})
}
