// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockTimeout is how long an instance that was killed may take to end, and its lock with it.
	lockTimeout = 2 * time.Second
	// lockInterval is the time between two attempts.
	lockInterval = 20 * time.Millisecond
)

// errOther is the error of a second instance.
var errOther = errors.New("another metalplugd is running with the same paths.state: stop it, or give this one another")

// lockState keeps other instances away from the state directory, which it makes if it is missing, by flock(2) of a file in
// it: two instances would overwrite each other's state. The lock ends with the process. The file is nil without an error if
// there is no directory to lock. The daemon serves without its state directory.
func lockState(ctx context.Context, dir string) (*os.File, error) {
	_ = os.MkdirAll(dir, 0o700) // the store logs what is wrong
	name := filepath.Join(dir, "state.lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, unix.EROFS) {
		f, err = os.Open(name)
	}
	if err != nil {
		if _, statErr := os.Lstat(name); statErr == nil { // another instance may have it
			return nil, fmt.Errorf("lock %s: %w: remove it", name, plainCause(err))
		}
		return nil, nil
	}
	for end := time.Now().Add(lockTimeout); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		case time.Now().After(end):
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, errOther)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(lockInterval):
		}
	}
}

// markStart reports whether this is the first start since the node was booted: systemd empties paths.run then, and the mark
// in it.
func markStart(run string) (afterBoot bool) {
	_ = os.MkdirAll(run, 0o755) // serving the control socket fails otherwise, which is logged
	f, err := os.OpenFile(filepath.Join(run, "started"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// plainCause drops what the os package puts around an errno: the caller names the operation and the path.
func plainCause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
