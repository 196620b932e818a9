// SPDX-License-Identifier: Apache-2.0

// Package fsutil reads and replaces metalplug's own files. The package also shortens errors and cleans texts for messages.
package fsutil

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// ReplaceFile replaces a file. The new file has exactly the given permissions, regardless of the umask. ReplaceFile first writes
// NAME.new, so that a crash leaves either the complete old file or the complete new file. ReplaceFile must not be called
// concurrently for the same file.
func ReplaceFile(name string, permissions os.FileMode, text []byte) error {
	next := name + ".new"
	// An earlier failure may have left a file with this name, or there may be a link with this name.
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(permissions), f.Sync()); err != nil {
		return err
	}
	if err := os.Rename(next, name); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(name))
}

// ReadRegular reads a regular file of at most limit bytes. For anything else, such as a link or a pipe, ReadRegular returns an
// error.
func ReadRegular(name string, limit int64) ([]byte, error) {
	text, _, err := ReadDated(name, limit)
	return text, err
}

// ReadDated is like ReadRegular, but also returns when the file was last modified. A separate call to os.Stat could find another
// file under the same name.
func ReadDated(name string, limit int64) (text []byte, modified time.Time, err error) {
	// With O_PATH, the kernel does not open the device or pipe behind the name (open(2)). Opening a watchdog, for example, starts
	// it.
	path, err := os.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer path.Close()
	info, err := path.Stat()
	switch {
	case err != nil:
		return nil, time.Time{}, err
	case info.IsDir():
		return nil, time.Time{}, fmt.Errorf("read %s: the file is a directory", name)
	case info.Mode().Type() == os.ModeSymlink:
		return nil, time.Time{}, fmt.Errorf("read %s: the file is a symbolic link", name)
	case !info.Mode().IsRegular():
		return nil, time.Time{}, fmt.Errorf("read %s: the file is not a regular file", name)
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", path.Fd()))
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("read %s: the file is larger than %d bytes", name, limit)
	}
	return text, info.ModTime(), err
}

// SyncDir flushes a directory's entries to disk, so that they survive a crash.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Cause returns the errno in an error, without the context that the packages os and net add. The caller should add the operation
// and the path itself. If err contains no errno, Cause returns err.
func Cause(err error) error {
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return err
}

// Printable replaces unprintable characters, such as control characters, with spaces, and invalid UTF-8 with U+FFFD. Parts of a
// text may come from hardware. A terminal would interpret control characters, and journalctl would not show the text.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
