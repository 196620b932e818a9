// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
)

// TestLockSaysWhatToDo: what is wrong with paths.run is told once, with the cause and not with what mkdir(2) makes of it.
func TestLockSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(path("file"), nil, 0o600), os.Symlink("b", path("a")), os.Symlink("a", path("b")),
		os.Symlink("nowhere", path("dangling")), os.MkdirAll(path("taken/metalplugd.lock"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, cause := range map[string]string{
		"file": "not a directory", "file/below": "not a directory", "a": "too many levels of symbolic links",
		"dangling": "no such file or directory",
	} {
		err := runLock(path(name)).take(impatient)
		if want := "lock " + path(name) + ": " + cause + ": set paths.run to a directory"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	const remedy = "/metalplugd.lock: is a directory: set paths.run to a directory that can be written to"
	if err := runLock(path("taken")).take(impatient); err == nil || err.Error() != "lock "+path("taken")+remedy {
		t.Errorf("%v", err)
	}
	if got, want := noRun("/run/x", fs.ErrPermission).Error(), "lock /run/x: permission denied: run it as root, or give it its own [paths]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// instance returns the locks of an instance on directories below dir, of which some may be another's: "plugins", "state" or
// "run" is then the name of its own.
func instance(t *testing.T, dir string, own ...string) (l locks, afterBoot bool) {
	t.Helper()
	path := func(name string) string {
		if slices.Contains(own, name) {
			name += ".own"
		}
		return filepath.Join(dir, name)
	}
	if err := os.MkdirAll(path("plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	return newLocks(config.Paths{DevicePlugins: path("plugins"), State: path("state"), Run: path("run")})
}

// TestOneInstanceOnADirectory: two that share any of the directories would each spoil what the other does, also after it was
// removed beneath the first, which locks it again.
func TestOneInstanceOnADirectory(t *testing.T) {
	dir := t.TempDir()
	first, afterBoot := instance(t, dir)
	if err := first.take(impatient); err != nil || !afterBoot {
		t.Fatalf("%v, %v", afterBoot, err)
	}
	for shared, own := range map[string][]string{
		"plugins": {"state", "run"}, "state": {"plugins", "run"}, "run": {"plugins", "state"},
	} {
		second, _ := instance(t, dir, own...)
		for _, removed := range []bool{false, true} {
			if removed {
				if err := errors.Join(os.RemoveAll(filepath.Join(dir, shared)), os.MkdirAll(filepath.Join(dir, shared), 0o700),
					first.take(impatient)); err != nil {
					t.Fatal(err)
				}
			}
			err := second.take(impatient)
			if err == nil || !strings.Contains(err.Error(), ": another metalplugd is running with the same paths.") {
				t.Errorf("two with the same %s, removed: %v: %v", shared, removed, err)
			}
			second.release()
		}
	}
	first.release()
	second, afterBoot := instance(t, dir)
	if err := second.take(impatient); err != nil || afterBoot {
		t.Fatalf("after the first has ended: %v, %v", afterBoot, err)
	}
	second.release()
}

// TestOneDirectoryForAll: an instance keeps others out, and not itself where its directories are one, by whatever name.
func TestOneDirectoryForAll(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	paths := config.Paths{DevicePlugins: dir, State: link, Run: dir}
	first, _ := newLocks(paths)
	defer first.release()
	if err := first.take(impatient); err != nil {
		t.Fatal(err)
	}
	second, _ := newLocks(paths)
	defer second.release()
	if err := second.take(impatient); !errors.Is(err, errOther) {
		t.Errorf("a second one: %v", err)
	}
}

// TestStateIsOfOneInstance: without the directory the daemon runs all the same.
func TestStateIsOfOneInstance(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	l := stateLock(dir)
	if err := l.take(impatient); err != nil {
		t.Fatal(err)
	}
	defer l.release()
	if err := stateLock(dir).take(impatient); err == nil || err.Error() != "lock "+dir+"/state.lock: another metalplugd is running with the same paths.state: stop it, or give this one another" {
		t.Errorf("locked twice: %v", err)
	}
	if err := stateLock("/dev/null/state").take(impatient); err != nil {
		t.Error(err)
	}
	taken := t.TempDir()
	if err := os.Mkdir(filepath.Join(taken, "state.lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := stateLock(taken).take(impatient); err == nil || err.Error() != "lock "+taken+"/state.lock: is a directory: remove it, it is made again" {
		t.Errorf("who else has it is not known: %v", err)
	}
}

// TestLockOfAnInstanceThatEnds: who was killed a moment ago may have its locks still, and is waited for.
func TestLockOfAnInstanceThatEnds(t *testing.T) {
	dir := t.TempDir()
	first, _ := instance(t, dir)
	if err := first.take(impatient); err != nil {
		t.Fatal(err)
	}
	second, _ := instance(t, dir)
	asked := 0
	if err := second.take(func() bool { asked++; first.release(); return true }); err != nil || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	second.release()
	long := patience(t.Context(), time.Hour)
	if patience(t.Context(), 0)() || !long() {
		t.Error("it waits for ever, or not at all")
	}
}

// TestStoppedWhileItWaits: whoever is stopped while another instance has a lock has not failed.
func TestStoppedWhileItWaits(t *testing.T) {
	dir := t.TempDir()
	first, _ := instance(t, dir)
	defer first.release()
	if err := first.take(impatient); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	paths := config.Paths{DevicePlugins: filepath.Join(dir, "plugins"), State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
	if err := Run(ctx, Options{Config: config.Config{Paths: paths}}); err != nil {
		t.Error(err)
	}
}

// TestLocksAreRoots: a lock that everybody can open, everybody can hold.
func TestLocksAreRoots(t *testing.T) {
	dir := t.TempDir()
	locks, _ := instance(t, dir)
	defer locks.release()
	if err := locks.take(impatient); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*lock{locks.state, locks.run} {
		if info, err := os.Stat(l.path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", l.path, info, err)
		}
	}
	f, err := os.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	locks.release()
	if err := locks.take(impatient); err != nil {
		t.Errorf("whoever may read paths.state keeps the daemon out: %v", err)
	}
}

// TestRunningPod: a pod runs as long as its cgroup has a process; where pods have no cgroups that is not known, unless the
// operator says that there are none.
func TestRunningPod(t *testing.T) {
	root := t.TempDir()
	d := &daemon{Options: Options{Config: config.Config{Paths: config.Paths{Cgroup: root}}}}
	said := func(pod string) string {
		runs, err := d.running(pod)
		return fmt.Sprint(runs, err)
	}
	for _, dir := range []string{"", "system.slice"} { // not a cgroup file system, and one without pods
		if dir != "" {
			if err := errors.Join(os.Mkdir(filepath.Join(root, dir), 0o755), os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if runs, err := d.running("A"); runs || !errors.Is(err, cgroup.ErrNoKubepods) {
			t.Errorf("without cgroups of pods: %v, %v", runs, err)
		}
	}
	d.Config.Paths.Cgroup = ""
	if got := said("A"); got != "false <nil>" {
		t.Errorf("with an empty paths.cgroup: %s", got)
	}
	d.Config.Paths.Cgroup = root
	for pod, populated := range map[string]string{"A": "1", "B": "0"} {
		dir := filepath.Join(root, "kubepods", "pod"+pod)
		err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o600),
			os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte("populated "+populated+"\n"), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := []string{said("A"), said("B"), said("C")}; !slices.Equal(got, []string{"true <nil>", "false <nil>", "false <nil>"}) {
		t.Errorf("A, B and C run: %v", got)
	}
}
