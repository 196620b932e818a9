// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/directory"
)

// lines is a log that is read line by line.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// standing is a whole daemon with a recording of one device, in directories of its own.
type standing struct {
	t         *testing.T
	dir       string
	log       lines
	inventory *inventory.Inventory
	stop      context.CancelFunc
	ended     chan error
}

const ownID = "node-w0"

// stand starts it, and returns when it has written its files.
func stand(t *testing.T, changes ...func(*standing, *Options)) *standing {
	t.Helper()
	dir, err := os.MkdirTemp("", "own") // short, for the sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &standing{t: t, dir: dir, log: make(lines, 1000), ended: make(chan error, 1)}
	recorded := "P: /devices/virtual/widget/w0\nN: w0\nE: SUBSYSTEM=widget\nE: DEVNAME=/dev/w0\nE: ID_SERIAL=A\nE: MAJOR=10\nE: MINOR=7\n"
	text := fmt.Sprintf("[paths]\ndevice_plugins = %q\nstate = %q\nrun = %q\ncdi = %q\n[hardware]\nsource = \"recording:%s\"\n"+
		"[[resource]]\nname = \"example.org/w\"\nclass = \"node\"\nmatch = { SUBSYSTEM = \"widget\" }\n",
		s.path("plugins"), s.path("own/state"), s.path("own/run"), s.path("cdi"), s.path("recording"))
	if err := errors.Join(os.WriteFile(s.path("recording"), []byte(recorded), 0o600),
		os.WriteFile(s.path("metalplug.toml"), []byte(text), 0o600), os.MkdirAll(s.path("plugins"), 0o750)); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(s.path("metalplug.toml"))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Config: c, Log: slog.New(slog.NewTextHandler(s.log, nil)),
		Watching: func(i *inventory.Inventory) { s.inventory = i },
	}
	for _, change := range changes {
		change(s, &o)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() { s.ended <- Run(ctx, o) }()
	t.Cleanup(func() { stop(); <-s.ended })
	s.says(`msg="device added"`, ownID)
	s.says("msg=ready")
	s.saved(ownID)
	return s
}

// saved waits until a text is in the file with the identities.
func (s *standing) saved(text string) {
	s.t.Helper()
	w, err := directory.Open(s.path("own/state"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Close()
	if err := w.Rearm(); err != nil {
		s.t.Fatal(err)
	}
	for {
		if all, err := os.ReadFile(s.path("own/state/identities.json")); err == nil && strings.Contains(string(all), text) {
			return
		}
		<-w.Events
	}
}

func (s *standing) path(name string) string { return filepath.Join(s.dir, name) }

// says waits for a line of the log in which all these texts are, and returns it.
func (s *standing) says(texts ...string) string {
	s.t.Helper()
	var seen strings.Builder
	limit := time.After(20 * time.Second)
	for {
		select {
		case line := <-s.log:
			seen.WriteString(line)
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return line
			}
		case <-limit:
			s.t.Fatalf("the log has no line with %q, but\n%s", texts, seen.String())
		}
	}
}

// remove removes a directory in one step: between its files the test may stand still until what is gone already is made again.
func (s *standing) remove(name string) error {
	gone := s.path("removed")
	return errors.Join(os.Rename(s.path(name), gone), os.RemoveAll(gone))
}

// silent looks whether what was logged has none of a text.
func (s *standing) silent(text string) {
	s.t.Helper()
	for {
		select {
		case line := <-s.log:
			if strings.Contains(line, text) {
				s.t.Errorf("the log says %s", line)
			}
		default:
			return
		}
	}
}

// answers asks the control socket.
func (s *standing) answers() error {
	c, err := net.Dial("unix", s.path("own/run/control.sock"))
	if err != nil {
		return err
	}
	return c.Close()
}

// TestOwnDirectoriesAreMadeAgain: whoever removes what the daemon has made for itself keeps nobody from it, and is told of by
// one line.
func TestOwnDirectoriesAreMadeAgain(t *testing.T) {
	const socket, lockFile = "own/run/control.sock", "own/run/metalplugd.lock"
	for name, c := range map[string]struct {
		spoil func(s *standing) error
		made  []string
	}{
		"the socket":        {func(s *standing) error { return os.Remove(s.path(socket)) }, []string{socket}},
		"the lock":          {func(s *standing) error { return os.Remove(s.path(lockFile)) }, []string{lockFile}},
		"paths.run":         {func(s *standing) error { return s.remove("own/run") }, []string{"own/run", lockFile, socket}},
		"paths.run renamed": {func(s *standing) error { return os.Rename(s.path("own/run"), s.path("away")) }, []string{"own/run", lockFile, socket}},
		"the socket replaced": {func(s *standing) error {
			l, err := control.Listen(s.path("other"))
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return errors.Join(l.Close(), os.Rename(s.path("other"), s.path(socket)))
		}, []string{socket}},
		"the lock of paths.state": {func(s *standing) error { return os.Remove(s.path("own/state/state.lock")) }, []string{"own/state/state.lock"}},
		"paths.state":             {func(s *standing) error { return s.remove("own/state") }, []string{"own/state", "identities.json", "cordons.json"}},
		"both":                    {func(s *standing) error { return s.remove("own") }, []string{"own/run", "own/state", "cordons.json", lockFile, socket}},
	} {
		t.Run(name, func(t *testing.T) {
			s := stand(t)
			if err := s.inventory.Cordon(t.Context(), ownID, inventory.Cordon{Reason: "loose"}); err != nil {
				t.Fatal(err)
			}
			s.saved("cordoned")
			if err := c.spoil(s); err != nil {
				t.Fatal(err)
			}
			s.says(append([]string{`level=WARN msg="own files made again"`}, c.made...)...)
			if err := s.answers(); err != nil {
				t.Error(err)
			}
			if err := runLock(s.path("own/run")).take(impatient); !errors.Is(err, errOther) {
				t.Errorf("another may start: %v", err)
			}
			for _, file := range []string{"own/state/identities.json", "own/state/cordons.json"} {
				if _, err := os.Stat(s.path(file)); err != nil {
					t.Error(err)
				}
			}
			s.silent("own files")
		})
	}
}

// TestOwnFilesAreRemovedOneByOne: what is made again between two of them is removed as well, and told of by a line of its own.
func TestOwnFilesAreRemovedOneByOne(t *testing.T) {
	s := stand(t)
	err := os.RemoveAll(s.path("own"))
	for errors.Is(err, unix.ENOTEMPTY) {
		err = os.RemoveAll(s.path("own"))
	}
	if err != nil {
		t.Fatal(err)
	}
	missing := []string{"own/run", "own/state", "own/run/metalplugd.lock", "own/run/control.sock", "own/state/state.lock", "identities.json"}
	for len(missing) > 0 {
		line := s.says(`level=WARN msg="own files made again"`)
		missing = slices.DeleteFunc(missing, func(text string) bool { return strings.Contains(line, text) })
	}
	if err := s.answers(); err != nil {
		t.Error(err)
	}
}

// TestSocketOfTheServiceManagerIsMadeAgain: it passes none on to who runs, so that the daemon makes one of its own. At the
// stop that is removed.
func TestSocketOfTheServiceManagerIsMadeAgain(t *testing.T) {
	s := stand(t, func(s *standing, o *Options) {
		path := s.path("own/run/control.sock")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := control.Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		defer l.Close()
		f, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		o.Sockets = map[string]*os.File{"control": f}
	})
	if err := errors.Join(s.answers(), os.Remove(s.path("own/run/control.sock"))); err != nil {
		t.Fatal(err)
	}
	s.says("own files made again", "own/run/control.sock")
	if err := s.answers(); err != nil {
		t.Error(err)
	}
	s.stop()
	err := <-s.ended
	s.ended <- err
	if _, err := os.Lstat(s.path("own/run/control.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left behind: %v", err)
	}
}

// TestOwnDirectoryThatCannotBeMadeAgain: what is in the way is named, once, and as soon as it is gone all is there again.
func TestOwnDirectoryThatCannotBeMadeAgain(t *testing.T) {
	s := stand(t)
	if err := errors.Join(os.Rename(s.path("own"), s.path("away")), os.WriteFile(s.path("own"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s.says("level=ERROR", `msg="own files not made again"`, "lock "+s.path("own/run")+": not a directory: set paths.run to a directory")
	if err := os.Remove(s.path("own")); err != nil {
		t.Fatal(err)
	}
	s.says("level=WARN", `msg="own files made again"`, "own/run/control.sock")
	if err := s.answers(); err != nil {
		t.Error(err)
	}
	s.silent("not made again")
}

// TestOtherInstanceTakesADirectory: where another instance has what was removed beneath this one, one of them has to end, and
// leaves what is the other's as it is.
func TestOtherInstanceTakesADirectory(t *testing.T) {
	s := stand(t)
	if err := s.inventory.Cordon(t.Context(), ownID, inventory.Cordon{Reason: "loose"}); err != nil {
		t.Fatal(err)
	}
	other := stateLock(s.path("own/state"))
	defer other.release()
	for other.file == nil { // it may be locked again before
		if err := os.RemoveAll(s.path("own/state")); err != nil && !errors.Is(err, unix.ENOTEMPTY) { // it may be written to
			t.Fatal(err)
		}
		_ = other.take(impatient)
	}
	err := <-s.ended
	s.ended <- err
	if !errors.Is(err, errOther) {
		t.Errorf("it ends with %v", err)
	}
	entries, err := os.ReadDir(s.path("own/state"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "state.lock" {
		t.Errorf("it has written %v in the directory of the other, %v", entries, err)
	}
}

// TestKubeletsDirectoryIsLockedBySomebody: whoever may read the kubelet's directory can lock it. A daemon that runs goes on,
// and says whom to look for.
func TestKubeletsDirectoryIsLockedBySomebody(t *testing.T) {
	s := stand(t)
	if err := os.Mkdir(s.path("other"), 0o750); err != nil {
		t.Fatal(err)
	}
	somebody := pluginsLock(s.path("other"))
	defer somebody.release()
	if err := somebody.take(impatient); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(s.path("plugins"), s.path("away")), os.Rename(s.path("other"), s.path("plugins"))); err != nil {
		t.Fatal(err)
	}
	s.says("level=WARN", `msg="kubelet directory not locked"`, s.path("plugins"), "or somebody else has locked it (lslocks names who)")
	if err := errors.Join(s.answers(), os.Remove(s.path("own/run/control.sock"))); err != nil {
		t.Fatal(err)
	}
	s.says(`msg="own files made again"`, "own/run/control.sock")
	s.silent("not locked")
	somebody.release()
	if err := os.Remove(s.path("own/run/control.sock")); err != nil {
		t.Fatal(err)
	}
	s.says(`msg="own files made again"`, "own/run/control.sock")
	if err := pluginsLock(s.path("plugins")).take(impatient); !errors.Is(err, errOther) {
		t.Errorf("another may start: %v", err)
	}
}

// TestOwnDirectoryIsNoLink: somebody who puts a link in the place of a directory at the very moment when it is made again does
// not have the daemon change what the link leads to.
func TestOwnDirectoryIsNoLink(t *testing.T) {
	dir := t.TempDir()
	path, link, target := filepath.Join(dir, "run"), filepath.Join(dir, "link"), filepath.Join(dir, "target")
	if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o751), os.Mkdir(target, 0o700)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if err := errors.Join(os.RemoveAll(path), os.RemoveAll(link), os.Symlink("target", link)); err != nil {
			t.Fatal(err)
		}
		made, swapped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(swapped)
			for unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE) != nil {
				select {
				case <-made:
					return
				default:
				}
			}
		}()
		_, _ = (&ownDir{path, before}).make() // it may fail: there is no directory
		close(made)
		<-swapped
		if after, err := os.Stat(target); err != nil || after.Mode() != fs.ModeDir|0o700 {
			t.Fatalf("%v, %v", after, err)
		}
	}
}

// TestOwnDirectoryAsItWas: whoever was let into a directory is let into the one that is made again.
func TestOwnDirectoryAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "above", "run")
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, 0o751)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := ownDir{path, before}
	for _, want := range []bool{false, true} {
		if made, err := dir.make(); err != nil || made != want {
			t.Errorf("%v, %v, want %v", made, err, want)
		}
		if after, err := os.Stat(path); err != nil || after.Mode() != before.Mode() {
			t.Errorf("%v, %v, want %v", after, err, before.Mode())
		}
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOwnWritingIsNoNews: what has been written may have to be written anew, where it may not last; that is no reason to do so
// at once, and for ever.
func TestOwnWritingIsNoNews(t *testing.T) {
	s := stand(t)
	if err := s.inventory.Kept(t.Context()); err != nil { // the writing is over
		t.Fatal(err)
	}
	w, err := directory.Open(s.path("own/state"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	o := &own{daemon: &daemon{inventory: s.inventory}, dirs: []*lock{stateLock(s.path("own/state"))}}
	written := directory.Event{Name: s.path("own/state/identities.json"), Op: fsnotify.Create}
	if o.concerns(w, written) {
		t.Error("what the daemon has written is news to it")
	}
	if err := errors.Join(os.Remove(written.Name), os.WriteFile(written.Name, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if !o.concerns(w, written) {
		t.Error("what somebody else has put there is none")
	}
}

// TestOwnAttemptIsNoNews: what cannot be written would be tried again without a pause.
func TestOwnAttemptIsNoNews(t *testing.T) {
	dir := t.TempDir()
	w, err := directory.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Rearm(); err != nil {
		t.Fatal(err)
	}
	o := &own{daemon: &daemon{inventory: &inventory.Inventory{}}, dirs: []*lock{stateLock(dir)}}
	for name, want := range map[string]bool{"cordons.json": true, "cordons.json.new": false} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil { // which is one event
			t.Fatal(err)
		}
		if got := o.concerns(w, <-w.Events); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
