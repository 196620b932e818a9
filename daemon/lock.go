// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lock makes sure that no other instance runs on the same directories. The file stays until the machine is booted, when
// /run is emptied: where it is new, this is the first start since.
func lock(dir string) (unlock func(), afterBoot bool, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, false, fmt.Errorf("lock %s: %w: set paths.run to a directory", dir, whyNoDir(dir, err))
	}
	name := filepath.Join(dir, "metalplugd.lock")
	_, err = os.Lstat(name)
	afterBoot = errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("lock %s: %w", name, err)
	}
	if err := exclude(f, "paths.run"); err != nil {
		f.Close()
		return nil, false, err
	}
	return func() { f.Close() }, afterBoot, nil
}

// lockState makes sure that no other instance keeps account of disks in the directory: each would forget what the other
// has noted. One that cannot be had is no reason not to run.
func lockState(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) && os.MkdirAll(dir, 0o755) == nil {
		f, err = os.Open(dir)
	}
	if err != nil { // the store says what to do
		return func() {}, nil
	}
	if err := exclude(f, "paths.state"); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// exclude keeps other instances out as long as the file is open; key is where the configuration names it.
func exclude(f *os.File, key string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: another metalplugd is running with the same %s: stop it, or give this one another", f.Name(), key)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// whyNoDir returns the cause alone for which a directory could not be made. A link that leads nowhere is there for
// mkdir(2), which says that it exists.
func whyNoDir(dir string, err error) error {
	if _, statErr := os.Stat(dir); errors.Is(err, fs.ErrExist) && statErr != nil {
		err = statErr
	}
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
