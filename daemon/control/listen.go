// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/metalplug/metalplug/internal/fsutil"
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
		return nil, fmt.Errorf("listen on %s: %w", path, fsutil.Cause(err))
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, fsutil.Cause(err))
	}
	return l, nil
}
