// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds the processes that hold a device node, and watches for the removal of pods' cgroups.
//
// The package identifies a pod by the UID that the kubelet puts into cgroup names. The package does not change cgroups.
package cgroup

import "strings"

// podOf returns the UID of the pod that a cgroup belongs to, or "" if the cgroup belongs to the host. The path comes from
// /proc/PID/cgroup, in version 1 or 2 (cgroups(7)). The path may lead out of the reader's cgroup namespace ("/../../kubepods/…").
//
// If a path contains several pods, podOf returns the outermost one. The inner pods belong to a kubelet inside a container, and
// the kubelet on this host does not know them. With kind or minikube, the node itself is a container. podOf ignores this
// container. podOf finds no pod in user.slice, because users can create cgroups with any name there.
//
// The kubelet (pkg/kubelet/cm/cgroup_manager_linux.go) and the runtime create these paths:
//
//	cgroupfs  /kubepods[/burstable|/besteffort]/podUID/[crio-]ID
//	systemd   /kubepods.slice[/kubepods-QOS.slice]/kubepods[-QOS]-podUID.slice/{cri-containerd|crio|docker}-ID.scope
//	mixed     [/system.slice/containerd.service]/kubepods[-QOS]-podUID.slice:cri-containerd:ID
//
// In a slice name, the UID has "_" in place of "-". With --cgroup-root R, the paths begin with R, as in "/R/kubepods" and
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

// idLength is the length of a container ID in hexadecimal digits. The ID is 32 random bytes in containerd
// (internal/cri/util, GenerateID), CRI-O (containers/storage, pkg/stringid), docker (pkg/stringid) and podman.
const idLength = 64

// isContainer reports whether a cgroup has the name of a container or of one of the runtime's helper processes.
func isContainer(name string) bool {
	name = strings.TrimSuffix(name, ".scope")
	at := len(name) - idLength
	return at >= 0 && isHex(name[at:]) && (at == 0 || strings.ContainsRune("-_:", rune(name[at-1])))
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// podIn returns the pod UID in the text of /proc/PID/cgroup, or "". The text contains a line ID:CONTROLLERS:PATH for each
// hierarchy. In a hierarchy that the runtime does not manage, the process may be in any cgroup.
func podIn(text string) string {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if uid := podOf(fields[len(fields)-1]); uid != "" && len(fields) == 3 {
			return uid
		}
	}
	return ""
}
