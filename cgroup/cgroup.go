// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds out whose process holds a device node, and when a pod's cgroup goes away.
//
// A pod is known here by its UID, as the kubelet writes it into the names of cgroups. Nothing here changes a cgroup.
package cgroup

import "strings"

// podOf reads the path of a cgroup as /proc/PID/cgroup has it (cgroups(7)), of version 1 or 2, also one that begins above the
// reader's own cgroup namespace ("/../../kubepods/…"). It returns the UID of the pod, empty for that of the host.
//
// The outermost pod counts. A kubelet in a container of a pod has pods of its own, unknown to the kubelet of this host. The
// container around a pod, such as a node of kind or minikube, does not count. In user.slice, where users make cgroups of any
// name, there is no pod.
//
// A path with a pod comes from the kubelet (pkg/kubelet/cm/cgroup_manager_linux.go) and the runtime:
//
//	cgroupfs  /kubepods[/burstable|/besteffort]/podUID/[crio-]ID
//	systemd   /kubepods.slice[/kubepods-QOS.slice]/kubepods[-QOS]-podUID.slice/{cri-containerd|crio|docker}-ID.scope
//	mixed     [/system.slice/containerd.service]/kubepods[-QOS]-podUID.slice:cri-containerd:ID
//
// In the name of a slice the UID has "_" for "-". A --cgroup-root R comes before, as in "/R/kubepods" and
// "/R.slice/R-kubepods.slice".
func podOf(path string) string {
	above := ""
	// A cgroup of version 2 that is removed while a zombie is in it is marked (kernel/cgroup/cgroup.c, proc_cgroup_show).
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

// podUID reads the name of a pod's cgroup. above is the name of the cgroup above it.
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
	case above == "..": // outside of the reader's namespace, where it may be any directory
		return uid, isUID(uid)
	}
	return "", false
}

// kubepods is the cgroup of all pods (kubernetes pkg/kubelet/cm, defaultNodeAllocatableCgroupName).
const kubepods = "kubepods"

// qos are the classes of pods that have a cgroup of their own below [kubepods], in lower case
// (pkg/apis/core/v1/helper/qos).
var qos = [...]string{"burstable", "besteffort"}

// isUID reports whether a pod's UID is of the usual form. It is a UUID, or for a static pod the MD5 of its manifest
// (pkg/kubelet/config, applyDefaults). A static pod may bring any other.
func isUID(uid string) bool {
	digits := strings.ReplaceAll(uid, "-", "")
	return len(digits) == 32 && isHex(digits)
}

// idLength is the length of a container ID in hexadecimal digits. It stands for 32 random bytes in containerd
// (internal/cri/util, GenerateID), CRI-O (containers/storage, pkg/stringid), docker (pkg/stringid) and podman.
const idLength = 64

// isContainer reports whether a cgroup has the name of a container, or of a process that the runtime runs next to it.
func isContainer(name string) bool {
	name = strings.TrimSuffix(name, ".scope")
	at := len(name) - idLength
	return at >= 0 && isHex(name[at:]) && (at == 0 || strings.ContainsRune("-_:", rune(name[at-1])))
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

// podIn reads the text of /proc/PID/cgroup, which has a line a hierarchy, ID:CONTROLLERS:PATH. In hierarchies that the
// runtime does not know the process may be anywhere.
func podIn(text string) string {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if uid := podOf(fields[len(fields)-1]); uid != "" && len(fields) == 3 {
			return uid
		}
	}
	return ""
}
