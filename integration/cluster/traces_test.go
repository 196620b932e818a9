// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// traces is the state outside the cluster's directory that the programs of a cluster could change. It maps paths to
// contents.
type traces map[string]string

// takeTraces reads the kernel settings that a kubelet changes, the directories that a kubelet and a container runtime
// create, and the cgroups of pods.
func takeTraces() (traces, error) {
	t := make(traces)
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	} {
		name = "/proc/sys/" + name
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		t[name] = string(text)
	}
	for _, pattern := range []string{
		"/var/lib/kubelet", "/var/log/pods", "/var/log/containers", "/run/containerd", "/run/metalplug", "/run/notify", "/run/cdi", "/var/lib/metalplug",
		"/usr/libexec/kubernetes", "/dev/widget*", "/sys/fs/cgroup/*kube*", "/sys/fs/cgroup/*/*kube*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		t[pattern] = strings.Join(found, " ")
	}
	return t, nil
}

// compare returns an error for each trace that has changed, and for each remaining process and mount of a cluster in
// dir.
func (t traces) compare(dir string) error {
	now, err := takeTraces()
	errs := []error{err}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if now[name] != t[name] {
			errs = append(errs, fmt.Errorf("%s is %q and was %q", name, now[name], t[name]))
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("%s is still there", dir))
	}
	if found, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", filepath.Base(dir))); err != nil || len(found) > 0 {
		errs = append(errs, err, fmt.Errorf("the cgroups %v are still there", found))
	}
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/mountinfo"} {
		files, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(text), dir+"/") { // the process may have ended in between
				errs = append(errs, fmt.Errorf("%s names %s", file, dir))
			}
		}
	}
	return errors.Join(errs...)
}
