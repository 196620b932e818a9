// SPDX-License-Identifier: Apache-2.0

package reset

// One request at a time acts on a device. The lock is a file in a directory that all instances of the program share. It is not
// in sysfs. Since systemd 254 each instance has a sysfs of its own (PrivateNetwork=, MOUNT_PRIVATE_SYSFS in namespace.c),
// where a lock holds no other instance back. Also any local process can lock a directory of sysfs.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// onlyFor is how long the helper waits for the lock of another instance. An instance whose asker has gone ends within that.
const onlyFor = time.Second

// only makes this the only instance that acts on a device, until unlock is called. The error is [Busy].
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
		return nil, errorf(Busy, "another request is at work on %s", sysPath)
	}
	return nil, errorf(Failed, "lock %s: %w", file, err)
}

// flocked locks an open file, LOCK_SH or LOCK_EX, and waits a while if another process has locked it.
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

// lockName returns the name of a device's lock file. It is a hash of its path, which is longer than a name may be.
func lockName(sysPath string) string {
	sum := sha256.Sum256([]byte(sysPath))
	return hex.EncodeToString(sum[:16])
}

// openLock opens a lock file, which is made if it is not there. Another user must not be able to lock it.
func openLock(file string) (fd int, err error) {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return -1, err
	}
	var s unix.Stat_t
	if err := unix.Lstat(dir, &s); err != nil {
		return -1, &os.PathError{Op: "look at", Path: dir, Err: err}
	}
	if s.Mode&unix.S_IFMT != unix.S_IFDIR || s.Mode&0o077 != 0 || s.Uid != uint32(os.Geteuid()) {
		return -1, fmt.Errorf("%s must be a directory of uid %d with mode 0700; its mode is %#o, its owner uid %d", dir, os.Geteuid(), s.Mode&0o7777, s.Uid)
	}
	fd, err = unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: file, Err: err}
	}
	return fd, nil
}
