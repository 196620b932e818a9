// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoKubepods means that there is no cgroup of all pods. The kubelet has not started since the host did, or it runs with
// cgroups-per-qos=false. It does not follow that a pod is gone.
var ErrNoKubepods = errors.New("no kubepods cgroup")

// controllersFile is in each cgroup of version 2 (Documentation/admin-guide/cgroup-v2.rst), in none of version 1.
const controllersFile = "cgroup.controllers"

// Populated reports whether there is a process in the cgroup of a pod, or below it. It returns false for a cgroup that does
// not exist. A zombie does not count.
func Populated(root, podUID string) (bool, error) {
	pods, err := findPods(root)
	if err != nil {
		return false, err
	}
	for _, dir := range pods[podUID] {
		populated, err := isPopulated(dir)
		if err != nil || populated {
			return populated, err
		}
	}
	return false, nil
}

// findPods returns the directories of the pods that have a cgroup, by UID. root is where the cgroups are ("/sys/fs/cgroup"), of
// version 1 or 2. The error is [ErrNoKubepods] if there is no cgroup of all pods.
//
// The kubelet makes the cgroup of a pod before its first container and removes it when the last process is gone, also of a pod
// that was deleted by force. But with a kubelet that uses systemd and a containerd that does not, containers are elsewhere and
// outlive the cgroup of their pod. [Holders] sees them, and this does not.
func findPods(root string) (map[string][]string, error) {
	dir, err := hierarchy(root)
	if err != nil {
		return nil, err
	}
	w := walk{services: true, pods: make(map[string][]string)}
	if err := w.below(dir, anywhere); err != nil {
		return nil, fmt.Errorf("look for pods in %s: %w", root, err)
	}
	if !w.kubepods {
		return nil, fmt.Errorf("look for pods in %s: %w", root, ErrNoKubepods)
	}
	return w.pods, nil
}

// hierarchies are those of version 1 of which one tells of all pods. The kubelet does not take a pod's cgroup for
// complete unless it is in that of memory (pkg/kubelet/cm, Validate of the manager for version 1).
var hierarchies = [...]string{"memory", "pids", "devices", "systemd"}

// hierarchy returns the directory of the hierarchy in which to look for pods.
func hierarchy(root string) (string, error) {
	if _, err := os.Stat(filepath.Join(root, controllersFile)); err == nil {
		return root, nil
	}
	for _, name := range hierarchies {
		dir := filepath.Join(root, name)
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("look for pods in %s: %w: it is the root of no cgroup hierarchy", root, fs.ErrNotExist)
}

// walk looks for the cgroups of pods.
type walk struct {
	visit    func(dir string) error // called before a directory is read whose children matter, or nil
	services bool                   // the cgroup of all pods may be in a service
	kubepods bool                   // there is a cgroup of all pods
	pods     map[string][]string    // directories by UID
}

const (
	// anywhere is the depth of a walk over all directories that may come before the cgroup of all pods.
	anywhere = math.MaxInt
	// prefixes is how many directories of a --cgroup-root may come before the cgroup of all pods that is watched. Further down
	// most cgroups are those of services, which come and go all the time.
	prefixes = 2
	// inside is the depth of a walk in the cgroup of all pods, or of a class.
	inside = -1
)

// below looks in a directory for the cgroup of all pods, which may be as many directories further down as depth says, and
// for pods inside of it. The directory may be a link, as "memory" in version 1.
func (w *walk) below(dir string, depth int) error {
	names, err := w.children(dir)
	for _, name := range names {
		child := filepath.Join(dir, name)
		uid, pod := podUID(filepath.Base(dir), name)
		switch {
		case depth == inside && pod:
			w.pods[uid] = append(w.pods[uid], child)
		case depth == inside && isClass(name):
			err = errors.Join(err, w.below(child, inside))
		case depth == inside:
		case isKubepods(name):
			w.kubepods = true
			err = errors.Join(err, w.below(child, inside))
		case depth > 0 && w.leads(name):
			err = errors.Join(err, w.below(child, depth-1))
		}
	}
	return err
}

func isKubepods(name string) bool {
	return name == kubepods || name == kubepods+".slice" || strings.HasSuffix(name, "-"+kubepods+".slice")
}

// leads reports whether the cgroup of all pods may be below one of that name. The pods of users, machines and containers
// are those of other kubelets.
func (w *walk) leads(name string) bool {
	switch {
	case isContainer(name), name == "user.slice", name == "machine.slice":
		return false
	case w.services:
		return true
	}
	return name != "system.slice" && (filepath.Ext(name) == "" || filepath.Ext(name) == ".slice")
}

// isClass reports whether a cgroup of that name is of a class of pods, as "burstable" or "kubepods-burstable.slice".
func isClass(name string) bool {
	return slices.ContainsFunc(qos[:], func(class string) bool {
		return name == class || strings.HasSuffix(name, kubepods+"-"+class+".slice")
	})
}

// children returns the names of the directories in a directory, and none if that is gone.
func (w *walk) children(dir string) ([]string, error) {
	if w.visit != nil {
		if err := w.visit(dir); err != nil {
			return nil, skipRemoved(err)
		}
	}
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, skipRemoved(err)
}

// isPopulated reports whether there is a process in a cgroup or below it. In version 2 the kernel says that in cgroup.events.
// In version 1 each cgroup lists its own processes.
func isPopulated(dir string) (bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err == nil {
		return strings.Contains("\n"+string(text), "\npopulated 1\n"), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, skipRemoved(err)
	}
	populated := false
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return skipRemoved(err)
		}
		text, err := os.ReadFile(path)
		if len(text) > 0 {
			populated = true
			return filepath.SkipAll
		}
		return skipRemoved(err)
	})
	return populated, err
}

// skipRemoved returns no error for a cgroup that is removed in between. kernfs has no such file any more, or one that was open
// has no cgroup (fs/kernfs, kernfs_get_active).
func skipRemoved(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
