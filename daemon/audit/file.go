// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	// fileSize is how large the file grows before a new one is begun, in bytes: some ten thousand entries.
	fileSize = 8 << 20
	// filesOld is how many old ones are kept: audit.jsonl.1 is the last, audit.jsonl.4 the oldest.
	filesOld = 4
)

// file is the audit's file. It is for one goroutine.
type file struct {
	name string
	most int64       // its size, for tests
	open *os.File    // nil: not yet
	dir  fs.FileInfo // of the directory in which that was opened
}

// newFile opens the file if there is one: as long as it is open it can be made again.
func newFile(dir string) *file {
	f := &file{name: filepath.Join(dir, "audit.jsonl"), most: fileSize}
	_ = f.reopen(0) // there may be none; of one that cannot be written prepare says why
	return f
}

// reopen goes on with the file that is there or, by O_CREATE, with a new one. What is not a regular file is refused: a pipe and
// some devices keep whoever reads or writes them waiting.
func (f *file) reopen(flags int) error {
	f.close()
	dir, err := os.Stat(filepath.Dir(f.name)) // first: of two directories the earlier one, so that the other is noticed
	if err != nil {
		return err
	}
	open, err := os.OpenFile(f.name, os.O_RDWR|os.O_APPEND|syscall.O_NONBLOCK|flags, 0o600)
	if err != nil {
		return err
	}
	if err := regular(open); err != nil {
		open.Close()
		return err
	}
	f.open, f.dir = open, dir
	return nil
}

// regular returns an error for what is not a regular file.
func regular(f *os.File) error {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: it is not a regular file: move it away", f.Name())
	}
	return err
}

// append appends whole lines and has them on disk when it returns nil. What it has written of them in vain is cut off. One
// call is not split between two files.
func (f *file) append(lines []byte) (err error) {
	size, err := f.prepare(int64(len(lines)))
	if err != nil {
		return err
	}
	_, err = f.open.Write(lines)
	if err == nil {
		err = f.open.Sync()
	}
	if err != nil {
		err = errors.Join(err, f.open.Truncate(size))
		f.close() // after a sync that failed, what the kernel has is not to be relied on (fsync(2))
		return err
	}
	return nil
}

// remake makes the file again, with what was in it, if somebody has removed it, or the directory in which it is: the kernel has
// it as long as it is open. Where another is in its place, that is gone on with, and what was in the last is kept beside, unless
// the other begins with it. One that was only renamed is still written to until another is there. What was made again is told.
func (f *file) remake() (told, err error) {
	if f.open == nil {
		return nil, nil
	}
	info, err := f.open.Stat()
	if err != nil {
		return nil, err
	}
	there, err := os.Stat(f.name)
	if err == nil && os.SameFile(info, there) {
		return nil, nil
	}
	_, err = os.Lstat(f.name) // a link that leads nowhere is in the way as well
	removed, replaced, moved := info.Sys().(*syscall.Stat_t).Nlink == 0, err == nil, f.moved()
	switch {
	case !removed && !replaced && !moved:
		return nil, nil
	case !replaced:
		told = fmt.Errorf("somebody has removed %s", f.name)
		if !removed {
			told = fmt.Errorf("somebody has moved %s away, or put another in its place", filepath.Dir(f.name))
		}
		_, err = f.copy(info.Size(), false)
	case (removed || moved) && !f.begins(info.Size()):
		var aside string
		aside, err = f.copy(info.Size(), true)
		told = fmt.Errorf("somebody has put another in the place of %s: what was in the last is in %s", f.name, aside)
	default: // nothing is lost
	}
	if err != nil {
		return nil, err
	}
	_ = f.reopen(0) // what cannot be gone on with is refused by prepare
	return told, syncDir(filepath.Dir(f.name))
}

// moved tells whether the directory in which the file was opened is not at its path any more: it was renamed, or another is
// mounted over it.
func (f *file) moved() bool {
	there, err := os.Stat(filepath.Dir(f.name))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return !os.SameFile(f.dir, there)
}

// begins tells whether the file that is there begins with the first bytes of the one that is open.
func (f *file) begins(size int64) bool {
	other, err := os.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return false
	}
	defer other.Close()
	if regular(other) != nil { // it waits for the writer when it is read, too
		return false
	}
	was, err := io.ReadAll(io.NewSectionReader(f.open, 0, size))
	if err != nil {
		return false
	}
	is, err := io.ReadAll(io.LimitReader(other, size))
	return err == nil && bytes.Equal(was, is)
}

// copy writes the first bytes of the file that is open to one of its name, or beside it, and returns that name. What is there is
// never replaced: somebody may have put it there a moment ago.
func (f *file) copy(size int64, beside bool) (name string, err error) {
	if err := os.MkdirAll(filepath.Dir(f.name), 0o755); err != nil {
		return "", err
	}
	next := f.name + ".new"
	_ = os.Remove(next) // what cannot be removed is there still
	again, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer os.Remove(next)
	_, err = io.Copy(again, io.NewSectionReader(f.open, 0, size))
	if err = errors.Join(err, again.Sync(), again.Close()); err != nil {
		return "", err
	}
	if !beside {
		return f.name, os.Link(next, f.name)
	}
	name = f.name + ".removed"
	for n := 2; ; n++ {
		if err := os.Link(next, name); !errors.Is(err, fs.ErrExist) {
			return name, err
		}
		name = fmt.Sprintf("%s.removed.%d", f.name, n)
	}
}

// prepare opens the file, or begins a new one where the old one has no room, and returns its size. A line that a crash has
// torn is ended, so that it spoils no other.
func (f *file) prepare(more int64) (size int64, err error) {
	if f.open == nil {
		if err := os.MkdirAll(filepath.Dir(f.name), 0o755); err != nil {
			return 0, err
		}
		if err := f.reopen(os.O_CREATE); err != nil {
			return 0, err
		}
		if err := syncDir(filepath.Dir(f.name)); err != nil {
			return 0, err
		}
	}
	if size, err = f.open.Seek(0, io.SeekEnd); err != nil {
		return 0, err
	}
	if size > 0 && size+more > f.most {
		if err := f.rotate(); err != nil {
			return 0, err
		}
		return f.prepare(more)
	}
	last := make([]byte, 1)
	if size == 0 {
		return 0, nil
	}
	if _, err := f.open.ReadAt(last, size-1); err != nil || last[0] == '\n' {
		return size, err
	}
	if _, err := f.open.WriteString("\n"); err != nil {
		return 0, err
	}
	return size + 1, nil
}

// syncDir makes it last that files were made or renamed in a directory.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// rotate puts the file aside.
func (f *file) rotate() error {
	for n := filesOld; n > 0; n-- {
		from := f.name
		if n > 1 {
			from = fmt.Sprintf("%s.%d", f.name, n-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", f.name, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f.close()
	return nil
}

func (f *file) close() {
	if f.open != nil {
		f.open.Close() // it was synced
		f.open = nil
	}
}
