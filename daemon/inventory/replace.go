// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// replace replaces a file, in a directory that is made if it is missing, by what encode writes: after a crash it is the
// old or the new one, whole. One call at a time for a file.
func (s *Store) replace(file *keptFile, encode func(io.Writer) error) error {
	next, err := s.writeBeside(file.path, encode)
	if err != nil {
		return err
	}
	if err := s.swap(next, file); err != nil {
		return inDoubt{err}
	}
	return nil
}

// inDoubt is an error after which either the file of before or the next one may be there.
type inDoubt struct{ error }

// Unwrap returns its cause.
func (d inDoubt) Unwrap() error { return d.error }

// writeBeside writes what is to replace a file, for good, and returns where it is.
func (s *Store) writeBeside(file string, encode func(io.Writer) error) (next string, err error) {
	if s.Owned != nil {
		if err := s.Owned(); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", fmt.Errorf("%w: paths.state is to be a directory that can be written to", err)
	}
	next = file + Unfinished
	// What a crash has left there is not written to: it could be a link, or have another owner.
	_ = os.Remove(next) // what cannot be removed is there still
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := encode(f); err != nil {
		return "", fmt.Errorf("write %s: %w", next, err)
	}
	return next, f.Sync()
}

// swap puts a file that was written in the place of another, so that it is there after a crash as well. An error does not say
// which of the two is there.
func (s *Store) swap(next string, kept *keptFile) error {
	file := kept.path
	target, notLink := os.Readlink(file)
	if kept.lost() { // what somebody has put there is his
		_, _ = keepBeside(file, ".replaced") // where it cannot be, what we know is worth more
	}
	kept.expect(next)
	if err := os.Rename(next, file); err != nil {
		if info, statErr := os.Lstat(file); statErr == nil && info.IsDir() {
			return fmt.Errorf("replace %s: %w", file, errDirectory)
		}
		return err
	}
	kept.remember()
	if notLink == nil { // the service may write nowhere else than in paths.state
		s.log.Warn("link replaced", "err", fmt.Errorf("%s was a link to %s, and is a file now: to have it elsewhere, set paths.state", file, target))
	}
	return s.syncDir(filepath.Dir(file))
}

// syncDir makes a rename in dir last.
func syncDir(dir string) error { return syncFile(dir) }

// syncFile makes what is in a file or a directory last.
func syncFile(name string) error {
	d, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
