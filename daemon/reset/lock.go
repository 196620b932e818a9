// SPDX-License-Identifier: Apache-2.0

package reset

// A lock ensures that only one request at a time works on a device. The lock is a file in a directory that all instances of the
// program share. A lock on the device's directory in sysfs would not work, for two reasons. Since systemd 254, each instance has
// its own sysfs (PrivateNetwork=, MOUNT_PRIVATE_SYSFS in namespace.c). A lock in this sysfs would not stop the other instances.
// Also, any local process can lock a directory in sysfs.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// deviceLockLimit is how long the helper waits until another instance releases the lock. An instance exits within this time after
// its client has disconnected.
const deviceLockLimit = time.Second

// lockDevice waits until no other instance works on a device, and then locks the device. Other instances wait until the caller
// calls unlock. If another instance does not release its lock in time, the error is [Busy]. Processes of other users cannot open
// the lock file, so they cannot lock it.
func (h *host) lockDevice(ctx context.Context, sysPath string) (unlock func(), err error) {
	file := lockFile(h.locks, sysPath)
	fd := -1
	if err = os.MkdirAll(h.locks, 0o700); err == nil {
		fd, err = unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return nil, errorf(Failed, "open the lock %s of %s: %w", file, sysPath, err)
	}
	err = waitForLock(ctx, unix.Flock, fd, unix.LOCK_EX, deviceLockLimit)
	if err == nil {
		return func() { unix.Close(fd) }, nil
	}
	unix.Close(fd)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errorf(Busy, "another request for %s is in progress", sysPath)
	}
	return nil, errorf(Failed, "lock %s: %w", file, err)
}

// lockFile returns the path of the lock file for a device. The name is a hash, because the path of a device may be too long for a
// file name.
func lockFile(dir, sysPath string) string {
	sum := sha256.Sum256([]byte(sysPath))
	return filepath.Join(dir, hex.EncodeToString(sum[:16]))
}

// waitForLock locks an open file with LOCK_SH or LOCK_EX. If another process has the lock, waitForLock waits until this process
// releases the lock, but no longer than the given limit.
func waitForLock(ctx context.Context, flock func(fd, how int) error, fd, how int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := flock(fd, how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || !pause(ctx, 20*time.Millisecond) {
			return err
		}
	}
}
