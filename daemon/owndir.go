// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownDir is a directory of the daemon's own.
type ownDir struct {
	path string
	info fs.FileInfo // as it was when it was first there; nil: it was not there yet
}

// make makes the directory if there is none, and tells whether it is one that was there before: that is made as it was.
func (d *ownDir) make() (again bool, err error) {
	if d.info == nil {
		if err := os.MkdirAll(d.path, 0o755); err != nil {
			return false, err
		}
		d.info, err = os.Stat(d.path)
		return false, err
	}
	if _, err := os.Lstat(d.path); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil {
		return false, err
	}
	switch err := os.Mkdir(d.path, 0o700); {
	case errors.Is(err, fs.ErrExist):
		return false, nil // whoever writes in it was faster
	case err != nil:
		return false, err
	}
	// Nothing is done to what somebody may put in its place, such as a link.
	f, err := os.OpenFile(d.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
	if err != nil {
		return true, err
	}
	defer f.Close()
	owner := d.info.Sys().(*syscall.Stat_t)
	_ = f.Chown(int(owner.Uid), int(owner.Gid)) // the sandbox of the unit refuses it, in which there is but one owner
	return true, f.Chmod(d.info.Mode().Perm())
}
