// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds the processes that hold a device node, and detects when pod cgroups are removed.
//
// The package identifies a pod by the UID that the kubelet includes in cgroup names. The package never changes a cgroup.
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

// podOf returns the UID of the pod that a cgroup belongs to, or "" if the cgroup belongs to the host. The path comes from
// /proc/PID/cgroup and may have the format of version 1 or 2 (cgroups(7)). The path may lead out of the reader's cgroup namespace
// ("/../../kubepods/…").
//
// If a path contains several pods, podOf returns the outermost one. The inner pods belong to a kubelet inside a container, and
// the kubelet on this host does not know them. With kind or minikube, the node itself is a container. podOf ignores that
// container. podOf finds no pod in user.slice, because users can create cgroups with any name there.
//
// The kubelet (pkg/kubelet/cm/cgroup_manager_linux.go) and the runtime create these paths:
//
//	cgroupfs  /kubepods[/burstable|/besteffort]/podUID/[crio-]ID
//	systemd   /kubepods.slice[/kubepods-QOS.slice]/kubepods[-QOS]-podUID.slice/{cri-containerd|crio|docker}-ID.scope
//	mixed     [/system.slice/containerd.service]/kubepods[-QOS]-podUID.slice:cri-containerd:ID
//
// In a slice name, "_" replaces each "-" in the UID. With --cgroup-root R, the paths begin with R, as in "/R/kubepods" and
// "/R.slice/R-kubepods.slice".
func podOf(path string) string {
	above := ""
	// The kernel adds this suffix if the cgroup was removed while a zombie was still in it (version 2,
	// kernel/cgroup/cgroup.c, proc_cgroup_show).
	for element := range strings.SplitSeq(strings.TrimSuffix(path, " (deleted)"), "/") {
		slice, _, _ := strings.Cut(element, ":")
		switch uid, ok := podUID(above, slice); {
		case element == "user.slice":
			return ""
		case ok:
			return uid
		case element != "" && element != ".":
			above = element
		}
	}
	return ""
}

// podUID returns the UID in the name of a pod's cgroup. The parameter "above" is the name of the parent cgroup.
func podUID(above, name string) (uid string, ok bool) {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		at := strings.LastIndex(slice, kubepods+"-")
		if at < 0 || at > 0 && slice[at-1] != '-' {
			return "", false
		}
		rest := strings.TrimPrefix(slice[at:], kubepods)
		for _, class := range qos {
			rest = strings.TrimPrefix(rest, "-"+class)
		}
		uid, ok = strings.CutPrefix(rest, "-pod")
		if !ok || uid == "" || strings.Contains(uid, "-") { // a slice with "-" in the UID would be below the pod's slice
			return "", false
		}
		return strings.ReplaceAll(uid, "_", "-"), true
	}
	uid, ok = strings.CutPrefix(name, "pod")
	switch {
	case !ok || uid == "":
		return "", false
	case above == kubepods, above == qos[0], above == qos[1]:
		return uid, true
	case above == "..": // outside the reader's namespace, so the parent may be any directory
		return uid, isUID(uid)
	}
	return "", false
}

// kubepods is the parent cgroup of all pods (kubernetes pkg/kubelet/cm, defaultNodeAllocatableCgroupName).
const kubepods = "kubepods"

// qos lists the QoS classes that have their own cgroup below [kubepods], in lower case (pkg/apis/core/v1/helper/qos).
var qos = [...]string{"burstable", "besteffort"}

// isUID reports whether a pod UID has the usual form. The usual form is a UUID or, for a static pod, the MD5 hash of the
// manifest (pkg/kubelet/config, applyDefaults). The UID in a static pod's manifest may have any other form.
func isUID(uid string) bool {
	digits := strings.ReplaceAll(uid, "-", "")
	return len(digits) == 32 && isHex(digits)
}

// idLength is the length of a container ID in hexadecimal digits. The ID consists of 32 random bytes in containerd
// (internal/cri/util, GenerateID), CRI-O (containers/storage, pkg/stringid), docker (pkg/stringid) and podman.
const idLength = 64

// isContainer reports whether a cgroup's name belongs to a container or to one of the runtime's helper processes.
func isContainer(name string) bool {
	name = strings.TrimSuffix(name, ".scope")
	at := len(name) - idLength
	return at >= 0 && isHex(name[at:]) && (at == 0 || strings.ContainsRune("-_:", rune(name[at-1])))
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// podIn returns the pod UID in the text of /proc/PID/cgroup, or "". The text has one line for each hierarchy, in the form
// ID:CONTROLLERS:PATH. In a hierarchy that the runtime does not manage, the process may be in any cgroup.
func podIn(text string) string {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if uid := podOf(fields[len(fields)-1]); uid != "" && len(fields) == 3 {
			return uid
		}
	}
	return ""
}

// ErrNoKubepods means that the parent cgroup of all pods does not exist. Either the kubelet has not started since boot, or it
// runs with cgroups-per-qos=false. The error therefore does not show that a pod has ended.
var ErrNoKubepods = errors.New("no kubepods cgroup")

// controllersFile exists in every version 2 cgroup (Documentation/admin-guide/cgroup-v2.rst), but in no version 1 cgroup.
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

// findPods maps the UID of each pod to the directories of its cgroups. The parameter root is the mount point of the cgroup file
// system ("/sys/fs/cgroup"), version 1 or 2. The error is [ErrNoKubepods] if the parent cgroup of all pods does not exist.
//
// The kubelet creates a pod's cgroup before the first container starts. The kubelet removes the cgroup after the last process has
// exited, even if the pod was force-deleted. If the kubelet uses the systemd cgroup driver but containerd does not, the
// containers are in other cgroups, which may outlive the pod's cgroup. [Holders] finds the processes in those containers, but
// findPods does not find their cgroups.
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

// hierarchies lists the version 1 hierarchies that may contain pods. Searching the first one that exists is enough. The kubelet
// requires every pod to have a cgroup in the memory hierarchy (pkg/kubelet/cm, Validate in the manager for version 1).
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

// walk is one search for pod cgroups.
type walk struct {
	visit    func(dir string) error // called before a directory with relevant children is read, or nil
	services bool                   // whether the parent cgroup of all pods may be inside a service
	kubepods bool                   // whether the parent cgroup of all pods exists
	pods     map[string][]string    // maps pod UIDs to directories
}

const (
	// unlimitedDepth sets no limit on the depth, so that search finds the parent cgroup of all pods in any directory.
	unlimitedDepth = math.MaxInt
	// watchDepth is the maximum number of directories that [Watch] follows from the root to the parent cgroup of all pods. The
	// kubelet flag --cgroup-root adds such directories. Deeper cgroups usually belong to services and change all the time.
	watchDepth = 2
	// insideKubepods is passed as the depth for the parent cgroup of all pods, and for a QoS class's cgroup.
	insideKubepods = -1
)

// search looks for pods in a directory and its subdirectories. The parameter depth is the number of levels that may lie between
// this directory and the parent cgroup of all pods. The directory may be a link, such as "memory" in version 1.
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
		case name == kubepods, name == kubepods+".slice", strings.HasSuffix(name, "-"+kubepods+".slice"):
			w.kubepods = true
			err = errors.Join(err, w.search(child, insideKubepods))
		case depth > 0 && w.mayContainPods(name):
			err = errors.Join(err, w.search(child, depth-1))
		}
	}
	return err
}

// mayContainPods reports whether a cgroup with this name may contain the parent cgroup of all pods. Pods in user, machine and
// container cgroups belong to other kubelets.
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
// answer. In cgroup v1, each cgroup lists only its own processes, so isPopulated also checks all cgroups below it.
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
