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
	most int64    // its size, for tests
	open *os.File // nil: not yet
}

// newFile opens the file if there is one: as long as it is open it can be made again.
func newFile(dir string) *file {
	f := &file{name: filepath.Join(dir, "audit.jsonl"), most: fileSize}
	f.reopen()
	return f
}

// reopen goes on with the file that is there, if there is one.
func (f *file) reopen() {
	f.close()
	if open, err := os.OpenFile(f.name, os.O_RDWR|os.O_APPEND, 0); err == nil {
		f.open = open
	}
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

// remake makes the file again, with what was in it, if somebody has removed it: the kernel has it as long as it is open. Where
// another is in its place, that is gone on with, and what was in the removed one is kept beside, unless the other begins with
// it. One that was only renamed is still written to until another is there. What was made again is told.
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
	removed, replaced := info.Sys().(*syscall.Stat_t).Nlink == 0, err == nil
	switch {
	case !removed && !replaced:
		return nil, nil
	case removed && !replaced:
		told = fmt.Errorf("somebody has removed %s", f.name)
		_, err = f.copy(info.Size(), false)
	case removed && !f.begins(info.Size()):
		var aside string
		aside, err = f.copy(info.Size(), true)
		told = fmt.Errorf("somebody has put another file in the place of %s, which is gone on with: what was in the last is in %s", f.name, aside)
	default: // nothing is lost
	}
	if err != nil {
		return nil, err
	}
	f.reopen()
	return told, syncDir(filepath.Dir(f.name))
}

// begins tells whether the file that is there begins with the first bytes of the one that is open.
func (f *file) begins(size int64) bool {
	other, err := os.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return false
	}
	defer other.Close()
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
		if f.open, err = os.OpenFile(f.name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			f.open = nil
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
