// SPDX-License-Identifier: Apache-2.0

package reset

// A lock ensures that only one request at a time works on a device. The lock is a file in a directory that all instances of the
// program share. Locking the device's directory in sysfs would not work, for two reasons. Since systemd 254, each instance has
// its own sysfs, so its lock would not stop other instances (PrivateNetwork=, MOUNT_PRIVATE_SYSFS in namespace.c). Also, any
// local process can lock a directory in sysfs.

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

// onlyFor is how long the helper waits until another instance releases the lock. An instance exits within this time after its
// client has disconnected.
const onlyFor = time.Second

// only waits until no other instance works on a device, and then locks the device. Other instances wait until the caller calls
// unlock. If another instance does not release its lock in time, the error is [Busy].
func (h *host) only(ctx context.Context, sysPath string) (unlock func(), err error) {
	file := filepath.Join(h.locks, lockName(sysPath))
	fd, err := h.openLock(file)
	if err != nil {
		return nil, errorf(Failed, "lock %s: %w", sysPath, err)
	}
	err = h.flocked(ctx, fd, unix.LOCK_EX, onlyFor)
	if err == nil {
		return func() { h.close(fd) }, nil
	}
	h.close(fd)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errorf(Busy, "another request for %s is in progress", sysPath)
	}
	return nil, errorf(Failed, "lock %s: %w", file, err)
}

// flocked locks an open file with LOCK_SH or LOCK_EX. If another process has the lock, flocked waits for it, but no longer than
// the given limit.
func (h *host) flocked(ctx context.Context, fd, how int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := h.flock(fd, how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || !pause(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// lockName returns the name of the lock file for a device. The name is a hash, because the path of a device may be too long for a
// file name.
func lockName(sysPath string) string {
	sum := sha256.Sum256([]byte(sysPath))
	return hex.EncodeToString(sum[:16])
}

// openLock opens or creates a lock file. Other users cannot open the file, so they cannot lock it.
func openLock(file string) (fd int, err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return -1, err
	}
	fd, err = unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: file, Err: err}
	}
	return fd, nil
}
