// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
)

// TestOneInstance checks that a second instance does not start with a directory of the first, even through a link, and
// that it names the directory.
func TestOneInstance(t *testing.T) {
	paths := config.Paths{State: filepath.Join(t.TempDir(), "state"), DevicePlugins: t.TempDir()}
	unlock, err := lockPaths(paths)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(paths.State, link); err != nil {
		t.Fatal(err)
	}
	const other = "another metalplugd uses this directory; stop it, or configure another directory"
	for want, second := range map[string]config.Paths{
		fmt.Sprintf("lock paths.state = %q: %s", link, other): {State: link, DevicePlugins: t.TempDir()},
		fmt.Sprintf("lock paths.device_plugins = %q: %s", paths.DevicePlugins, other): {
			State: t.TempDir(), DevicePlugins: paths.DevicePlugins,
		},
	} {
		if err := Run(t.Context(), Options{Config: config.Config{Paths: second}}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if entries, err := os.ReadDir(paths.State); err != nil || len(entries) > 0 {
		t.Errorf("the lock is a file: %v, %v", entries, err)
	}
	unlock()
	// The locks taken before the failure are released. A missing directory does not prevent a start.
	for _, dir := range []string{paths.DevicePlugins, "/dev/null/plugins"} {
		unlock, err := lockPaths(config.Paths{State: paths.State, DevicePlugins: dir})
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
}

// TestRunningPod checks that a pod counts as running as long as its cgroup has a process. If pods have no cgroups, this
// is unknown, unless the operator has configured that there are none.
func TestRunningPod(t *testing.T) {
	root := t.TempDir()
	d := &daemon{Options: Options{Config: config.Config{Paths: config.Paths{Cgroup: root}}}}
	said := func(pod string) string {
		runs, err := d.running(pod)
		return fmt.Sprint(runs, err)
	}
	for _, dir := range []string{"", "system.slice"} { // a directory outside cgroup file systems, and one without pods
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
