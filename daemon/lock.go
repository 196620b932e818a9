// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
)

const (
	// dying is how long an instance that was killed may take to end, and its locks with it.
	dying = 2 * time.Second
	// lockPause is the time between two attempts at a lock.
	lockPause = 20 * time.Millisecond
	// replaced is how often what is locked may turn out to have been replaced meanwhile, before it is left at that.
	replaced = 5
)

// errOther: another instance has what we would lock.
var errOther = errors.New("another metalplugd is running")

// lock keeps other instances away from a directory, by flock(2) of the directory itself or of a file in it. So it holds for
// whoever uses that directory, whatever else is configured, through bind mounts and out of a network namespace, which an
// abstract socket does not; it ends with the process, and puts nothing into a directory of the kubelet's. A file is root's
// alone: flock(2) asks for no more than the right to read. Its methods are safe for concurrent use.
type lock struct {
	key  string                   // where the configuration names the directory
	path string                   // of what is locked
	open func() (*os.File, error) // opens that; nil without an error: it cannot be had, which is no reason not to run
	who  string                   // who may have it as well that is no instance, and how he is found; empty: nobody
	dir  ownDir                   // in which the file is; none for the kubelet's directory

	mu   sync.Mutex
	file *os.File // nil: not held
	made []string // what of file and directory was made again, whoever had need of it, until madeAgain tells
}

// locks are those of an instance, in the order in which they are taken: who is kept out by one has not held those after it,
// which the other may just be about to take again.
type locks struct{ plugins, state, run *lock }

// newLocks returns the locks of an instance, none of which is held, and whether this is the first start since the machine was
// booted: the file in paths.run stays until then, when /run is emptied.
func newLocks(paths config.Paths) (all locks, afterBoot bool) {
	all = locks{pluginsLock(paths.DevicePlugins), stateLock(paths.State), runLock(paths.Run)}
	_, err := os.Lstat(all.run.path)
	return all, errors.Is(err, fs.ErrNotExist)
}

// runLock returns the lock of the directory of the control socket.
func runLock(dir string) *lock {
	name := filepath.Join(dir, "metalplugd.lock")
	l := &lock{key: "paths.run", path: name, dir: ownDir{path: dir}}
	l.open = func() (*os.File, error) {
		_ = l.mkdir() // as it was; the next says what is wrong with what is there
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, noRun(dir, whyNoDir(dir, err))
		}
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, noRun(name, plainCause(err))
		}
		return f, nil
	}
	return l
}

// noRun returns an error that tells what to do where paths.run cannot be used.
func noRun(path string, cause error) error {
	remedy := "set paths.run to a directory that can be written to"
	switch {
	case errors.Is(cause, fs.ErrPermission):
		remedy = "run it as root, or give it its own [paths]"
	case errors.Is(cause, unix.ENOTDIR), errors.Is(cause, fs.ErrNotExist), errors.Is(cause, unix.ELOOP):
		remedy = "set paths.run to a directory"
	}
	return fmt.Errorf("lock %s: %w: %s", path, cause, remedy)
}

// stateLock returns the lock of the account of disks: of two that keep one each would forget what the other has noted. Its
// name is another than that in paths.run, which may be the same directory.
func stateLock(dir string) *lock {
	name := filepath.Join(dir, "state.lock")
	l := &lock{key: "paths.state", path: name, dir: ownDir{path: dir}}
	l.open = func() (*os.File, error) {
		_ = l.mkdir() // the store says what to do
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, unix.EROFS) {
			f, err = os.Open(name)
		}
		if err == nil {
			return f, nil
		}
		if _, statErr := os.Lstat(name); statErr == nil { // another instance may be sharing it
			return nil, fmt.Errorf("lock %s: %w: remove it, it is made again", name, plainCause(err))
		}
		return nil, nil
	}
	return l
}

// pluginsLock returns the lock of the kubelet's directory: the kubelet asks but one of two that offer the same resource. Who
// makes the directory is the kubelet, and whoever may read it, as a container that it is mounted into, can lock it as well.
func pluginsLock(dir string) *lock {
	return &lock{
		key: "paths.device_plugins", path: dir, open: func() (*os.File, error) { return openDir(dir), nil },
		who: ", or somebody else has locked it (lslocks names who)",
	}
}

// openDir opens a directory; nil if there is none that can be opened.
func openDir(dir string) *os.File {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	return f
}

func (all locks) each() []*lock { return []*lock{all.plugins, all.state, all.run} }

// take takes all locks, or those again that were on something else. It fails if another instance has one, and patient does not
// wait for that any more.
func (all locks) take(patient func() bool) error {
	for _, l := range all.each() {
		if err := l.take(patient); err != nil {
			return err
		}
	}
	return nil
}

// release lets others have them.
func (all locks) release() {
	for _, l := range all.each() {
		l.release()
	}
}

// take locks what is at the path, unless that is locked already: what was there before may have been removed, together with
// its lock. What cannot be opened changes nothing.
func (l *lock) take(patient func() bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range replaced {
		if l.same() {
			break
		}
		f, err := l.open()
		if f == nil {
			return err
		}
		if err := l.exclude(f, patient); err != nil {
			f.Close()
			return err
		}
		if l.file != nil && l.dir.path != "" { // the kubelet's directory is not ours to make
			l.made = append(l.made, l.path)
		}
		l.drop()
		l.file = f
	}
	return nil
}

// own takes the lock again if that is due, and fails if another instance has it: what is at the path is the other's to write.
func (l *lock) own() error { return l.take(impatient) }

// makeDir makes the directory again if it is missing. One that never was there is for whoever needs it to complain of.
func (l *lock) makeDir() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir.info == nil {
		return nil
	}
	return l.mkdir()
}

// mkdir is makeDir; l.mu is held.
func (l *lock) mkdir() error {
	again, err := l.dir.make()
	if again {
		l.made = append(l.made, l.dir.path)
	}
	return err
}

// madeAgain returns what was made again since the last call.
func (l *lock) madeAgain() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	made := l.made
	l.made = nil
	return made
}

// same tells whether what is at the path is what is locked. l.mu is held.
func (l *lock) same() bool {
	if l.file == nil {
		return false
	}
	there, err := os.Stat(l.path)
	if err != nil {
		return false
	}
	own, err := l.file.Stat()
	return err == nil && os.SameFile(there, own)
}

func (l *lock) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
}

// drop is release; l.mu is held.
func (l *lock) drop() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// exclude keeps other instances out as long as the file is open. It is tried again as long as patient returns true.
func (l *lock) exclude(f *os.File, patient func() bool) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", l.path, err)
		case !patient():
			return fmt.Errorf("lock %s: %w with the same %s%s: stop it, or give this one another", l.path, errOther, l.key, l.who)
		}
	}
}

// patience returns what waits between two attempts, and is false once that has taken too long, or ctx has ended.
func patience(ctx context.Context, limit time.Duration) func() bool {
	end := time.Now().Add(limit)
	return func() bool {
		select {
		case <-ctx.Done():
		case <-time.After(lockPause):
		}
		return ctx.Err() == nil && time.Now().Before(end)
	}
}

// impatient waits for nobody.
func impatient() bool { return false }

// whyNoDir returns the cause alone for which a directory could not be made. A link that leads nowhere is there for
// mkdir(2), which says that it exists.
func whyNoDir(dir string, err error) error {
	if _, statErr := os.Stat(dir); errors.Is(err, fs.ErrExist) && statErr != nil {
		err = statErr
	}
	return plainCause(err)
}

// plainCause drops what the os package puts around an errno: the caller names the operation and the path.
func plainCause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
