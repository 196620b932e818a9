// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
)

// startMark is the name of the mark of a start in paths.run.
const startMark = "started"

// errOther is the error of a second instance.
var errOther = errors.New("another metalplugd uses this directory; stop it, or give this one another")

// lockPaths keeps other instances away from the state directory, which it makes if it is missing, and from the kubelet's
// directory. Two instances would overwrite each other's state, or register the same resources. It locks the directories
// themselves by flock(2). No file can be removed under the lock, and links lead to the same lock. The locks end with the
// process. A directory that cannot be opened has no lock. The daemon serves without its state then, or waits for the
// kubelet.
func lockPaths(paths config.Paths) (unlock func(), err error) {
	_ = os.MkdirAll(paths.State, 0o700) // the store logs what is wrong
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

// markStart returns when a daemon before this one was last registered with a kubelet. The time is zero at the first start
// since the node was booted, because systemd empties paths.run then, with the mark in it.
func markStart(run string) (last time.Time) {
	_ = os.MkdirAll(run, 0o755) // serving the control socket fails otherwise, which is logged
	mark := filepath.Join(run, startMark)
	f, err := os.OpenFile(mark, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		f.Close()
		return time.Time{}
	}
	info, err := os.Stat(mark)
	if err != nil {
		return time.Now()
	}
	return info.ModTime()
}

// markRegistered notes that an endpoint has been registered, or has lost its kubelet, for the next start.
func markRegistered(run string) {
	_ = os.Chtimes(filepath.Join(run, startMark), time.Time{}, time.Now())
}
