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

// ErrNoKubepods means that the parent cgroup of all pods does not exist. Either the kubelet has not started since boot, or it
// runs with cgroups-per-qos=false. The error therefore does not show that a pod has ended.
var ErrNoKubepods = errors.New("no kubepods cgroup")

// controllersFile exists in every cgroup of version 2 (Documentation/admin-guide/cgroup-v2.rst), but in no cgroup of
// version 1.
const controllersFile = "cgroup.controllers"

// Populated reports whether a pod's cgroup, or a cgroup below it, contains a process. Populated returns false if the cgroup does
// not exist. Zombies are ignored.
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

// findPods maps the UID of each pod to the directories of its cgroups. The parameter root is the mount point of cgroups
// ("/sys/fs/cgroup"), version 1 or 2. The error is [ErrNoKubepods] if the parent cgroup of all pods does not exist.
//
// The kubelet creates a pod's cgroup before the first container starts. The kubelet removes the cgroup after the last process has
// exited, even if the pod was force-deleted. If the kubelet uses the systemd cgroup driver but containerd does not, the
// containers are in other cgroups, which may outlive the pod's cgroup. [Holders] finds the processes in such containers, but
// findPods does not.
func findPods(root string) (map[string][]string, error) {
	dir, err := hierarchy(root)
	if err != nil {
		return nil, err
	}
	w := walk{services: true, pods: make(map[string][]string)}
	if err := w.search(dir, unlimitedDepth); err != nil {
		return nil, fmt.Errorf("find pods in %s: %w", root, err)
	}
	if !w.kubepods {
		return nil, fmt.Errorf("find pods in %s: %w", root, ErrNoKubepods)
	}
	return w.pods, nil
}

// hierarchies lists the version 1 hierarchies that may contain pods. A search of the first one that exists is enough. The kubelet
// requires that each pod's cgroup is in the memory hierarchy (pkg/kubelet/cm, Validate in the manager for version 1).
var hierarchies = [...]string{"memory", "pids", "devices", "systemd"}

// hierarchy returns the directory to search for pods. With version 1, this is the directory of the first hierarchy in
// [hierarchies] that exists.
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
	return "", fmt.Errorf("find pods in %s: %w: the directory is not the root of a cgroup hierarchy", root, fs.ErrNotExist)
}

// walk is one search for the cgroups of pods.
type walk struct {
	visit    func(dir string) error // called before a directory with relevant children is read, or nil
	services bool                   // whether the parent cgroup of all pods may be inside a service
	kubepods bool                   // whether the parent cgroup of all pods exists
	pods     map[string][]string    // maps pod UIDs to directories
}

const (
	// unlimitedDepth is a depth without limit, so that the parent cgroup of all pods is found in any directory.
	unlimitedDepth = math.MaxInt
	// watchDepth is the maximum number of directories that [Watch] follows from the root to the parent cgroup of all pods. A
	// --cgroup-root adds such directories. Deeper cgroups usually belong to services and change all the time.
	watchDepth = 2
	// insideKubepods is passed as the depth for the parent cgroup of all pods, and for the cgroup of a QoS class.
	insideKubepods = -1
)

// search looks for pods in a directory and below. The parameter depth is the number of levels that may lie between this directory
// and the parent cgroup of all pods. The directory may be a link, such as "memory" in version 1.
func (w *walk) search(dir string, depth int) error {
	names, err := w.children(dir)
	for _, name := range names {
		child := filepath.Join(dir, name)
		uid, pod := podUID(filepath.Base(dir), name)
		switch {
		case depth == insideKubepods && pod:
			w.pods[uid] = append(w.pods[uid], child)
		case depth == insideKubepods && isClass(name):
			err = errors.Join(err, w.search(child, insideKubepods))
		case depth == insideKubepods:
		case isKubepods(name):
			w.kubepods = true
			err = errors.Join(err, w.search(child, insideKubepods))
		case depth > 0 && w.mayContainPods(name):
			err = errors.Join(err, w.search(child, depth-1))
		}
	}
	return err
}

func isKubepods(name string) bool {
	return name == kubepods || name == kubepods+".slice" || strings.HasSuffix(name, "-"+kubepods+".slice")
}

// mayContainPods reports whether a cgroup with this name may contain the parent cgroup of all pods. Pods in the cgroups of users,
// machines and containers belong to other kubelets.
func (w *walk) mayContainPods(name string) bool {
	switch {
	case isContainer(name), name == "user.slice", name == "machine.slice":
		return false
	case w.services:
		return true
	}
	return name != "system.slice" && (filepath.Ext(name) == "" || filepath.Ext(name) == ".slice")
}

// isClass reports whether the given name is that of a QoS class's cgroup, such as "burstable" or "kubepods-burstable.slice".
func isClass(name string) bool {
	return slices.ContainsFunc(qos[:], func(class string) bool {
		return name == class || strings.HasSuffix(name, kubepods+"-"+class+".slice")
	})
}

// children returns the names of the subdirectories in a directory, or nil if the directory is gone.
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

// isPopulated reports whether a cgroup, or one below it, contains a process. In cgroup v2, the file cgroup.events contains the
// answer. In cgroup v1, each cgroup lists only its own processes, so isPopulated also looks into all cgroups below.
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
		text, err := readFile(path)
		if len(text) > 0 {
			populated = true
			return filepath.SkipAll
		}
		return skipRemoved(err)
	})
	return populated, err
}

// skipRemoved returns nil if err shows that a cgroup was removed while it was read. In that case, the file does not exist, or the
// open file no longer belongs to a cgroup (fs/kernfs, kernfs_get_active).
func skipRemoved(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
