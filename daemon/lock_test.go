// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
)

// locked locks a directory until the test ends.
func locked(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := lockState(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestStateIsOfOneInstance: a second instance says where the first is, also where it comes by a link.
func TestStateIsOfOneInstance(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	locked(t, dir)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	want := "lock " + link + "/state.lock: another metalplugd is running with the same paths.state: stop it, or give this one another"
	if _, err := lockState(t.Context(), link); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if info, err := os.Stat(filepath.Join(dir, "state.lock")); err != nil || info.Mode() != 0o600 {
		t.Errorf("other users can hold the lock: %v, %v", info, err)
	}
}

// TestStateThatCannotBeLocked: the daemon runs without its directory, but not if another instance may have the lock.
func TestStateThatCannotBeLocked(t *testing.T) {
	if f, err := lockState(t.Context(), "/dev/null/state"); f != nil || err != nil {
		t.Errorf("%v, %v", f, err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "state.lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := lockState(t.Context(), dir); err == nil || err.Error() != "lock "+dir+"/state.lock: is a directory: remove it" {
		t.Error(err)
	}
}

// TestLockOfAnInstanceThatEnds: an instance that was killed a moment ago may still have the lock.
func TestLockOfAnInstanceThatEnds(t *testing.T) {
	dir := t.TempDir()
	first := locked(t, dir)
	second := make(chan error, 1)
	go func() {
		f, err := lockState(t.Context(), dir)
		second <- errors.Join(err, f.Close())
	}()
	first.Close()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// TestStoppedWhileItWaits: a daemon that is stopped while another instance has the lock has not failed.
func TestStoppedWhileItWaits(t *testing.T) {
	dir := t.TempDir()
	locked(t, dir)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := Run(ctx, Options{Config: config.Config{Paths: config.Paths{State: dir}}}); err != nil {
		t.Error(err)
	}
}

// TestMarkStart: the first start after a boot is the one that finds an empty directory.
func TestMarkStart(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	for _, want := range []bool{true, false} {
		if got := markStart(run); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if markStart("/dev/null/run") {
		t.Error("a directory that cannot be made was emptied by a boot")
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
