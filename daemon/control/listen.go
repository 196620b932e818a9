// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// connections is how many clients are served at once, and followers how many of them may follow the events: those
	// stay, and must not keep the operator out.
	connections = 64
	followers   = 56
)

// group is whose members may read.
const group = "metalplug"

// Listen makes the socket at path, for uid 0 and the members of the group metalplug, if there is one. What is left over
// from an earlier start is removed: the caller makes sure that no other daemon serves there.
func Listen(path string) (*net.UnixListener, error) {
	old, err := os.Lstat(path)
	if err == nil && old.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen on %s: what is there is no socket: remove it", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, errors.Unwrap(err))
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, plainCause(err))
	}
	if err := share(path); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, plainCause(err))
	}
	return l, nil
}

// share lets the group in. Without the group, as on a machine where the package was not installed, or without the right to
// give anything to it, as in the sandbox of the unit, the socket is for uid 0 alone. Until then nobody but the owner may
// connect: that takes the right to write.
func share(path string) error {
	g, err := user.LookupGroup(group)
	if err != nil {
		return os.Chmod(path, 0o600)
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return err
	}
	err = os.Chown(path, -1, gid)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EINVAL) { // EINVAL: a user namespace does not know the group
		return os.Chmod(path, 0o600)
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, 0o660)
}

// plainCause drops what the net and os packages put around an errno: the caller names the operation and the path.
func plainCause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
