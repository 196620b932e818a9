// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds out whose process holds a device node, and when a pod's cgroup goes away.
//
// A pod is known here by its UID and a container by its ID, as the kubelet and the container runtimes write them into
// the names of cgroups; what they are called is known to others. Nothing here changes a cgroup.
package cgroup

import "strings"

// Container is whose a process is, by its cgroup. The zero value stands for the host itself.
type Container struct {
	PodUID  string `json:"pod,omitempty"`     // empty: of no pod
	ID      string `json:"id,omitempty"`      // 64 hexadecimal digits; empty: in the cgroup of the pod, in none of a container
	Runtime string `json:"runtime,omitempty"` // who made the cgroup, "containerd", "cri-o", "docker", "podman"; empty: the path does not say
}

// idLength is the length of a container ID in hexadecimal digits: 32 random bytes in containerd (internal/cri/util,
// GenerateID), CRI-O (containers/storage, pkg/stringid), docker (pkg/stringid) and podman.
const idLength = 64

// Parse reads the path of a cgroup as /proc/PID/cgroup has it (cgroups(7)), of version 1 or 2, also one that begins
// above the reader's own cgroup namespace ("/../../kubepods/…"). It is false if the path is that of no container and of
// no pod.
//
// The outermost pod is the one: a kubelet in a container of a pod has pods of its own, unknown to the kubelet of this
// host. What encloses a pod, such as the container that is a node of kind or minikube, does not count; nor does what a
// container has made below its own cgroup. In user.slice, where users make cgroups of whatever name, there is no pod.
//
// A path with a pod comes from the kubelet (pkg/kubelet/cm/cgroup_manager_linux.go) and the runtime:
//
//	cgroupfs  /kubepods[/burstable|/besteffort]/podUID/[crio-]ID
//	systemd   /kubepods.slice[/kubepods-QOS.slice]/kubepods[-QOS]-podUID.slice/{cri-containerd|crio|docker}-ID.scope
//	mixed     [/system.slice/containerd.service]/kubepods[-QOS]-podUID.slice:cri-containerd:ID
//
// In the name of a slice the UID has "_" for "-". A --cgroup-root R comes before: "/R/kubepods",
// "/R.slice/R-kubepods.slice".
func Parse(path string) (Container, bool) {
	var c Container
	above, users := "", false
	// A cgroup of version 2 that is removed while a zombie is in it is marked (kernel/cgroup/cgroup.c, proc_cgroup_show).
	for element := range strings.SplitSeq(strings.TrimSuffix(path, " (deleted)"), "/") {
		if element == "" || element == "." {
			continue
		}
		slice, scope, mixed := strings.Cut(element, ":")
		if !mixed {
			scope = element
		}
		if uid, ok := podUID(above, slice); ok && c.PodUID == "" && !users {
			c = Container{PodUID: uid}
		}
		if id, runtime, ok := containerID(above, scope); ok && c.ID == "" {
			c.ID, c.Runtime = id, runtime
		}
		above, users = element, users || element == "user.slice"
	}
	return c, c != Container{}
}

// podUID reads the name of a pod's cgroup; above is the name of the one above it.
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
		if !ok || uid == "" || strings.Contains(uid, "-") { // that would be a slice below the pod's
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
	case above == "..": // outside of the reader's namespace; it may be any directory
		return uid, isUID(uid)
	}
	return "", false
}

// kubepods is the cgroup of all pods (kubernetes pkg/kubelet/cm, defaultNodeAllocatableCgroupName).
const kubepods = "kubepods"

// qos are the classes of pods that have a cgroup of their own below [kubepods], in lower case
// (pkg/apis/core/v1/helper/qos).
var qos = [...]string{"burstable", "besteffort"}

// isUID tells whether a pod's UID is of the usual form: a UUID, or of a static pod the MD5 of its manifest
// (pkg/kubelet/config, applyDefaults). A static pod may bring any other.
func isUID(uid string) bool {
	digits := strings.ReplaceAll(uid, "-", "")
	return len(digits) == 32 && isHex(digits)
}

// containerID reads the name of a container's cgroup, or of a process that a runtime keeps beside it.
func containerID(above, name string) (id, runtime string, ok bool) {
	name = strings.TrimSuffix(name, ".scope")
	at := len(name) - idLength
	if at < 0 || !isHex(name[at:]) {
		return "", "", false
	}
	id = name[at:]
	if at == 0 {
		if above == "docker" {
			runtime = above
		}
		return id, runtime, true
	}
	if !strings.ContainsRune("-_:", rune(name[at-1])) {
		return "", "", false
	}
	return id, runtimeOf(name[:at-1]), true
}

// runtimeOf returns the name of the runtime that begins the names of its cgroups in that way.
func runtimeOf(prefix string) string {
	switch first, _, _ := strings.Cut(strings.TrimPrefix(prefix, "cri-"), "-"); first {
	case "crio": // and crio-conmon
		return "cri-o"
	case "libpod": // and libpod-conmon
		return "podman"
	default:
		return first
	}
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

// containerOf reads the text of /proc/PID/cgroup, which has a line a hierarchy, ID:CONTROLLERS:PATH. In hierarchies that
// the runtime does not know the process may be anywhere.
func containerOf(text string) Container {
	var found Container
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		c, ok := Parse(fields[2])
		if c.PodUID != "" {
			return c
		}
		if ok && found == (Container{}) {
			found = c
		}
	}
	return found
}
