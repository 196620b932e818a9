// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
)

// errOther means that another instance of metalplugd is running.
var errOther = errors.New("another metalplugd uses this directory; stop it, or configure another directory")

// lockPaths locks the state directory and the kubelet's directory, so that no other instance of metalplugd can use them. Two
// instances would overwrite each other's state or register the same resources. lockPaths creates the state directory if
// necessary. lockPaths locks the directories themselves with flock(2), because another process could remove a lock file. A lock
// on a directory also works if the other instance uses a path with a symbolic link. The kernel removes the locks when the process
// ends. If a directory cannot be opened, lockPaths does not lock it. If the state directory is missing, the daemon works without
// a saved state. If the kubelet's directory is missing, the daemon waits for the kubelet.
func lockPaths(paths config.Paths) (unlock func(), err error) {
	_ = os.MkdirAll(paths.State, 0o700) // the store logs the error
	var locks []*os.File
	unlock = func() {
		for _, f := range locks {
			f.Close()
		}
	}
	for _, d := range []struct{ key, dir string }{{"paths.state", paths.State}, {"paths.device_plugins", paths.DevicePlugins}} {
		f, err := os.OpenFile(d.dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			continue
		}
		locks = append(locks, f)
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			err = errOther
		}
		if err != nil {
			unlock()
			return nil, fmt.Errorf("lock %s = %q: %w", d.key, d.dir, err)
		}
	}
	return unlock, nil
}
