// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// keptFile is a file of the store. It is safe for concurrent use; one at a time replaces it.
type keptFile struct {
	path string
	own  atomic.Pointer[[]fs.FileInfo] // of what was read at the start or written since, or is just being put there; nil: neither was
}

// remember takes what is there for what was kept last.
func (k *keptFile) remember() {
	info, _ := os.Lstat(k.path) // what is gone already is as another
	k.own.Store(&[]fs.FileInfo{info})
}

// expect takes a file that is going to be there for one that was kept as well. Before one was, nothing can be lost.
func (k *keptFile) expect(next string) {
	own := k.own.Load()
	if info, err := os.Lstat(next); own != nil && err == nil {
		k.own.Store(&[]fs.FileInfo{(*own)[0], info})
	}
}

// lost tells whether what was kept last is not there any more: it was removed, or there is another in its place, as where an older
// directory was put back. Where that cannot be told, it is not.
func (k *keptFile) lost() bool {
	for {
		own := k.own.Load()
		if own == nil {
			return false
		}
		now, err := os.Lstat(k.path)
		is := func(one fs.FileInfo) bool {
			return one != nil && os.SameFile(now, one) && now.ModTime().Equal(one.ModTime())
		}
		switch {
		case err != nil && !absent(err) || err == nil && slices.ContainsFunc(*own, is):
			return false
		case k.own.Load() == own: // else what was seen may be of before or after that
			return true
		}
	}
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
		if k.path == file && k.own.Load() != nil {
			return !k.lost()
		}
	}
	return false
}
