// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
)

// TestLockSaysWhatToDo: what is wrong with paths.run is told once, with the cause and not with what mkdir(2) makes of it.
func TestLockSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(path("file"), nil, 0o600), os.Symlink("b", path("a")), os.Symlink("a", path("b")),
		os.Symlink("nowhere", path("dangling"))); err != nil {
		t.Fatal(err)
	}
	for name, cause := range map[string]string{
		"file": "not a directory", "file/below": "not a directory", "a": "too many levels of symbolic links",
		"dangling": "no such file or directory",
	} {
		_, _, err := lock(path(name))
		if want := "lock " + path(name) + ": " + cause + ": set paths.run to a directory"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	unlock, afterBoot, err := lock(path("new"))
	if err != nil || !afterBoot {
		t.Fatalf("%v, %v", afterBoot, err)
	}
	if _, _, err := lock(path("new")); err == nil {
		t.Error("locked twice")
	}
	unlock()
	if unlock, afterBoot, err = lock(path("new")); err != nil || afterBoot {
		t.Fatalf("%v, %v", afterBoot, err)
	}
	unlock()
}

// TestStateIsOfOneInstance: two that keep one account would each forget what the other has noted. Without the directory
// the daemon runs all the same.
func TestStateIsOfOneInstance(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	unlock, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockState(dir); err == nil || err.Error() != "lock "+dir+": another metalplugd is running with the same paths.state: stop it, or give this one another" {
		t.Errorf("locked twice: %v", err)
	}
	unlock()
	if unlock, err = lockState(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
	if unlock, err = lockState("/dev/null/state"); err != nil {
		t.Error(err)
	}
	unlock()
}

// TestRunningPod: a pod runs as long as its cgroup has a process; where pods have no cgroups none is known to run.
func TestRunningPod(t *testing.T) {
	root := t.TempDir()
	d := &daemon{Options: Options{Config: config.Config{Paths: config.Paths{Cgroup: root}}}}
	said := func(pod string) string {
		runs, err := d.running(pod)
		return fmt.Sprint(runs, err)
	}
	if got := said("A"); got != "false <nil>" {
		t.Errorf("without cgroups: %s", got)
	}
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
