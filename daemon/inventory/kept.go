// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// keptFile is a file of the store. It is safe for concurrent use.
type keptFile struct {
	path string
	last atomic.Pointer[fs.FileInfo] // of what was read at the start or written since; nil: neither was
}

// remember takes what is there for what was kept last.
func (k *keptFile) remember() {
	info, _ := os.Lstat(k.path) // what is gone already is as another
	k.last.Store(&info)
}

// lost tells whether what was kept last is not there any more: it was removed, or there is another in its place, as where an older
// directory was put back. Where that cannot be told, it is not.
func (k *keptFile) lost() bool {
	last := k.last.Load()
	if last == nil {
		return false
	}
	now, err := os.Lstat(k.path)
	if err != nil {
		return absent(err)
	}
	return *last == nil || !os.SameFile(now, *last) || !now.ModTime().Equal((*last).ModTime())
}

// missing tells whether there is no such file.
func (k *keptFile) missing() bool {
	_, err := os.Lstat(k.path)
	return absent(err)
}

// absent tells whether an error says that there is no such file, nor a directory that could have it.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// Left tells whether a file of the store is what was written there last: what is told of it is the writing. It does not block.
func (i *Inventory) Left(file string) bool {
	if i.Store == nil {
		return false
	}
	for _, k := range []*keptFile{&i.Store.kept, &i.Store.keptCordons} {
		if k.path == file && k.last.Load() != nil {
			return !k.lost()
		}
	}
	return false
}
