// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Listen makes the socket at path, for the uid of the daemon alone: the one that systemd makes is for a group too. A socket
// that a process which has ended left there is replaced; one that is served is an error.
func Listen(path string) (*net.UnixListener, error) {
	old, err := os.Lstat(path)
	if err == nil && old.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen on %s: what is there is no socket: remove it", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("listen on %s: another process serves it: set another paths.run", path)
	}
	_ = os.Remove(path) // what is still there is in the way
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, plainCause(err))
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, plainCause(err))
	}
	return l, nil
}

// plainCause drops what the net and os packages put around an errno: the caller names the operation and the path.
func plainCause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
