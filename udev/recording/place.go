// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// placePrefix is what the name of every place begins with.
const placePrefix = "metalplug-recording-"

// marker is the file of a place that is whole: the text that its tree was made of. It is written last and removed last.
const marker = "recording.umockdev"

// place is the temporary directory of a recording. Whoever makes it holds flock(2) on it until it is removed: a place that
// nobody holds is of a process that was killed. The lock keeps systemd-tmpfiles away as well (tmpfiles.d(5)).
type place struct {
	path string
	dir  *os.File
}

// newPlace makes a place and locks it. It waits for systemd-tmpfiles alone, which locks for a moment what it looks at: the
// others leave alone what has no marker.
func newPlace() (*place, error) {
	path, err := os.MkdirTemp("", placePrefix)
	if err != nil {
		return nil, fmt.Errorf("create a temporary directory: %w: set TMPDIR", err)
	}
	p, err := openPlace(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	if err := p.lock(unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w: set TMPDIR", path, err), p.end())
	}
	return p, nil
}

// openPlace opens a directory, and no link to one.
func openPlace(path string) (*place, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &place{path, dir}, nil
}

// lock takes the lock of the place as flock(2) does.
func (p *place) lock(how int) error { return unix.Flock(int(p.dir.Fd()), how) }

// end removes the place and gives the lock back, in this order: whoever gets the lock finds nothing there any more. What has
// come to its path since is somebody else's and stays.
func (p *place) end() error {
	defer p.dir.Close()
	if !p.there() {
		return nil
	}
	names, err := p.dir.Readdirnames(-1)
	for _, name := range names {
		if name != marker { // the last: who is killed meanwhile leaves what is known for a place still
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.path, name)))
		}
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(p.path)
}

// there tells whether the path leads to the place still.
func (p *place) there() bool {
	now, err := os.Lstat(p.path)
	if err != nil {
		return false
	}
	opened, err := p.dir.Stat()
	return err == nil && os.SameFile(opened, now)
}

// whole tells whether a directory is a place of this user's with a whole tree, and on the given device: no mount point.
func (p *place) whole(device uint64) bool {
	var dir, mark unix.Stat_t
	fd := int(p.dir.Fd())
	if unix.Fstat(fd, &dir) != nil || unix.Fstatat(fd, marker, &mark, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return false
	}
	return dir.Mode&0o777 == 0o700 && int(dir.Uid) == os.Geteuid() && uint64(dir.Dev) == device && mark.Mode&unix.S_IFMT == unix.S_IFREG
}

// removeLeft removes the places that processes have left which were killed. What cannot be removed is nothing that the caller
// needs; the next one tries again.
func removeLeft() {
	var tmp unix.Stat_t
	if unix.Stat(os.TempDir(), &tmp) != nil {
		return
	}
	entries, _ := os.ReadDir(os.TempDir()) // what could be read of it
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), placePrefix) {
			continue
		}
		p, err := openPlace(filepath.Join(os.TempDir(), entry.Name()))
		if err != nil {
			continue
		}
		// Without a marker it may be one that is just being made, whose lock is not to be taken. Two may get here at once: the
		// second gets the lock when the first has removed the place, whose name may be another's by then.
		if p.whole(uint64(tmp.Dev)) && p.lock(unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = p.end()
		} else {
			p.dir.Close()
		}
	}
}
