// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"

	"github.com/metalplug/metalplug/internal/clients"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// Listen creates a unix socket that only metalplugd's own uid can open. By contrast, a group may also open the socket that the
// systemd unit creates. Listen replaces the socket of a process that has ended. If another process still serves the socket,
// Listen returns an error.
func Listen(path string) (*net.UnixListener, error) {
	old, err := os.Lstat(path)
	if err == nil && old.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen on %s: the file is not a socket; remove the file", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("listen on %s: another process already listens there; set paths.run to another directory", path)
	}
	_ = os.Remove(path) // an old socket file would make the bind fail
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; set paths.run to a directory in which metalplugd can write", path, fsutil.Cause(err))
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, fsutil.Cause(err))
	}
	return l, nil
}

// surplusClient returns the client to disconnect, or nil. If the newest client's user has too many clients, the result is that
// user's oldest client. A user with read access therefore cannot keep root from making changes. With PrivateUsers=yes, metalplugd
// sees the same uid for all users except root (user_namespaces(7)).
func surplusClient(open []*clients.Client) *clients.Client {
	newest := open[len(open)-1]
	same := slices.DeleteFunc(slices.Clone(open), func(c *clients.Client) bool { return c.Uid != newest.Uid })
	if len(same) <= maxClients {
		return nil
	}
	return same[0]
}
