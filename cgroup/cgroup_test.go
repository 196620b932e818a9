// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	id1    = "09d185410c4e25236cc24717f881589bb0978b24eafd101624e627a4dd8d3439"
	id2    = "3ad85da3fccbfd88a3f7b398a8adf6b5064a15a4bef5b6bfd687e1059d97f71e"
	uid    = "03f3f104-3215-44f2-9686-d4dd1f05a7ed"
	uid_   = "03f3f104_3215_44f2_9686_d4dd1f05a7ed" // as in the name of a slice
	uid2   = "1e597579-417e-482f-bf65-5fe170c3aebd"
	uid2_  = "1e597579_417e_482f_bf65_5fe170c3aebd"
	static = "187bff14cccb94f179e943eacce55bb3" // netdata/netdata issue 4868
)

// paths are the forms of paths that are known to occur, each with where it is from. IDs and UIDs are replaced by the
// ones above.
var paths = []struct {
	from string
	path string
	want Container
}{
	// cgroupfs driver: kubernetes pkg/kubelet/cm/cgroup_manager_linux.go, containerd internal/cri/server getCgroupsPath
	{"kubelet cgroupfs, containerd, guaranteed", "/kubepods/pod" + uid + "/" + id1, Container{uid, id1, ""}},
	{"kubelet cgroupfs, containerd, burstable", "/kubepods/burstable/pod" + uid + "/" + id1, Container{uid, id1, ""}},
	{"kubelet cgroupfs, containerd, best effort", "/kubepods/besteffort/pod" + uid + "/" + id1, Container{uid, id1, ""}},
	{"kubelet cgroupfs, the pod itself", "/kubepods/besteffort/pod" + uid, Container{uid, "", ""}},
	{"kubelet cgroupfs, static pod", "/kubepods/burstable/pod" + static + "/" + id1, Container{static, id1, ""}},
	{"kubelet cgroupfs, a manifest with a UID of its own", "/kubepods/podmy_static-pod.1/" + id1, Container{"my_static-pod.1", id1, ""}},
	{"cri-o internal/config/cgmgr cgroupfs", "/kubepods/burstable/pod" + uid + "/crio-" + id1, Container{uid, id1, "cri-o"}},
	{"cri-o cgroupfs, conmon", "/kubepods/burstable/pod" + uid + "/crio-conmon-" + id1, Container{uid, id1, "cri-o"}},
	{"kubelet --cgroup-root=/prefix, cgroupfs", "/prefix/kubepods/besteffort/pod" + uid + "/" + id1, Container{uid, id1, ""}},
	{"kind before 0.12, cgroupfs", "/kubelet/kubepods/burstable/pod" + uid + "/" + id1, Container{uid, id1, ""}},
	{"kata-containers, sandbox_cgroup_only", "/kubepods/besteffort/pod" + uid + "/kata_" + id1, Container{uid, id1, "kata"}},

	// systemd driver: opencontainers/cgroups systemd ExpandSlice
	{"cryptnono issue 47, k3s", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", Container{uid, id1, "containerd"}},
	{"netdata issue 4868, burstable", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", Container{uid, id1, "containerd"}},
	{"netdata issue 4868, static pod", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + static + ".slice/cri-containerd-" + id1 + ".scope", Container{static, id1, "containerd"}},
	{"kata-containers pull 11598, guaranteed", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", Container{uid, id1, "containerd"}},
	{"runc issue 4620, cri-o", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/crio-" + id1 + ".scope", Container{uid, id1, "cri-o"}},
	{"cri-o with crun, /container", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/crio-" + id1 + ".scope/container", Container{uid, id1, "cri-o"}},
	{"cri-o, conmon_cgroup = pod", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-conmon-" + id1 + ".scope", Container{uid, id1, "cri-o"}},
	{"pharos-cluster issue 440, dockershim", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid_ + ".slice/docker-" + id1 + ".scope", Container{uid, id1, "docker"}},
	{"lxc issue 3890, docker, the pod itself", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice", Container{uid, "", ""}},
	{"systemd in a container", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope/init.scope", Container{uid, id1, "containerd"}},
	{"systemd in a container, a service", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope/system.slice/ssh.service", Container{uid, id1, "containerd"}},
	{"docker in a container", "/kubepods/burstable/pod" + uid + "/" + id1 + "/docker/" + id2, Container{uid, id1, ""}},
	{"kind issue 3947", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", Container{uid, id1, "containerd"}},
	{"containerd/nri pull 227, guaranteed", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", Container{uid, id1, "containerd"}},
	{"kubelet --cgroup-root=/a/b, systemd", "/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod" + uid_ + ".slice/crio-" + id1 + ".scope", Container{uid, id1, "cri-o"}},

	// kubelet with the systemd driver, containerd with cgroupfs
	{"opentelemetry-java issue 4507, at the root", "/kubepods-besteffort-pod" + uid_ + ".slice:cri-containerd:" + id1, Container{uid, id1, "containerd"}},
	{"opentelemetry-java issue 4507, in the service", "/system.slice/containerd.service/kubepods-besteffort-pod" + uid_ + ".slice:cri-containerd:" + id1, Container{uid, id1, "containerd"}},
	{"apm-agent-nodejs issue 3550", "/system.slice/containerd.service/kubepods-burstable-pod" + uid_ + ".slice:cri-containerd:" + id1, Container{uid, id1, "containerd"}},
	{"mixed, guaranteed, static pod", "/system.slice/containerd.service/kubepods-pod" + static + ".slice:cri-containerd:" + id1, Container{static, id1, "containerd"}},
	{"mixed, with a cgroup below", "/system.slice/containerd.service/kubepods-pod" + uid_ + ".slice:cri-containerd:" + id1 + "/init.scope", Container{uid, id1, "containerd"}},
	{"mixed, kind", "/system.slice/containerd.service/kubelet-kubepods-pod" + uid_ + ".slice:cri-containerd:" + id1, Container{uid, id1, "containerd"}},

	// a node that is itself a container, seen from outside
	{"minikube issue 11280", "/docker/" + id2 + "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid_ + ".slice/crio-" + id1 + ".scope", Container{uid, id1, "cri-o"}},
	{"kind before 0.12, from the host", "/docker/" + id2 + "/kubelet/kubepods/burstable/pod" + uid + "/" + id1, Container{uid, id1, ""}},
	{"kind on cgroup 2, from the host", "/system.slice/docker-" + id2 + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", Container{uid, id1, "containerd"}},
	{"minikube's node without pods", "/docker/" + id2 + "/system.slice/kubelet.service", Container{"", id2, "docker"}},
	{"a kubelet in a pod: ours is the outer one", "/kubepods/pod" + uid + "/" + id1 + "/kubelet/kubepods/burstable/pod" + uid2 + "/" + id2, Container{uid, id1, ""}},
	{"the same with systemd", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + id1 + ".scope/kubepods.slice/kubepods-pod" + uid2_ + ".slice/crio-" + id2 + ".scope", Container{uid, id1, "cri-o"}},

	// from inside another cgroup namespace: kernel/cgroup/cgroup.c cgroup_path_ns, cgroup_namespaces(7)
	{"from a sibling container", "/../" + id1, Container{"", id1, ""}},
	{"from another pod of that class, cgroupfs", "/../../pod" + uid + "/" + id1, Container{uid, id1, ""}},
	{"from another class, cgroupfs", "/../../../besteffort/pod" + uid + "/" + id1, Container{uid, id1, ""}},
	{"from another pod, systemd", "/../../kubepods-burstable-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", Container{uid, id1, "containerd"}},
	{"from a service of the host", "/../../kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + id1 + ".scope/container", Container{uid, id1, "cri-o"}},
	{"some directory of somebody's", "/../../pods/" + id1[:12], Container{}},
	{"another one", "/../podium", Container{}},

	// containers of no pod
	{"opentelemetry-java-instrumentation ContainerInfoTest, docker", "/docker/" + id1, Container{"", id1, "docker"}},
	{"neuvector cgroup_test, docker with systemd", "/system.slice/docker-" + id1 + ".scope", Container{"", id1, "docker"}},
	{"neuvector cgroup_test, docker in docker's namespace", "/" + id1, Container{"", id1, ""}},
	{"podman, root", "/machine.slice/libpod-" + id1 + ".scope/container", Container{"", id1, "podman"}},
	{"podman, conmon", "/machine.slice/libpod-conmon-" + id1 + ".scope", Container{"", id1, "podman"}},
	{"podman, cgroupfs", "/libpod_parent/libpod-" + id1, Container{"", id1, "podman"}},
	{"podman, rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id1 + ".scope/container", Container{"", id1, "podman"}},
	{"nerdctl with systemd", "/system.slice/nerdctl-" + id1 + ".scope", Container{"", id1, "nerdctl"}},
	{"nerdctl, cgroupfs", "/default/" + id1, Container{"", id1, ""}},
	{"kata-containers pull 11598, overhead", "/kata_overhead/" + id1, Container{"", id1, ""}},
	{"ContainerInfoTest, ECS", "/ecs/classic/5a0d5ceddf6c44c1928d367a815d890f/" + id1, Container{"", id1, ""}},

	{"a kubelet of a user", "/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/" + id1, Container{"", id1, ""}},

	// of version 2, removed: kernel/cgroup/cgroup.c proc_cgroup_show
	{"removed, with a zombie", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + id1 + ".scope (deleted)", Container{uid, id1, "cri-o"}},

	// the host
	{"the root", "/", Container{}},
	{"nothing", "", Container{}},
	{"a service", "/system.slice/containerd.service", Container{}},
	{"an instance of a service", "/system.slice/system-metalplug\\x2dreset.slice/metalplug-reset@3-1-0.service", Container{}},
	{"a session", "/user.slice/user-1000.slice/session-3.scope", Container{}},
	{"the slice of all pods", "/kubepods.slice", Container{}},
	{"the slice of a class", "/kubepods.slice/kubepods-burstable.slice", Container{}},
	{"the directory of a class", "/kubepods/burstable", Container{}},
	{"a user who calls a cgroup so", "/user.slice/user-1000.slice/user@1000.service/kubepods-pod" + uid_ + ".slice/x.service", Container{}},
	{"a slice that only looks like it", "/mykubepods-pod" + uid_ + ".slice", Container{}},
	{"a slice below the one of a pod", "/kubepods-pod" + uid_ + "-x.slice", Container{}},
	{"a pod's name elsewhere", "/machine.slice/pod" + uid, Container{}},
	{"cryptnono issue 47, buildkit", "/docker/buildkit/t4967jvf8rbufklrhkicskyes", Container{}},
	{"digits behind a letter", "/x" + id1, Container{}},
	{"upper case", "/docker/" + strings.ToUpper(id1), Container{}},
}

func TestParse(t *testing.T) {
	for _, c := range paths {
		t.Run(c.from, func(t *testing.T) {
			got, ok := Parse(c.path)
			if got != c.want || ok != (c.want != Container{}) {
				t.Errorf("Parse(%q)\n = %+v, %v\nwant %+v", c.path, got, ok, c.want)
			}
		})
	}
}

func TestContainerOf(t *testing.T) {
	pod := "/kubepods.slice/kubepods-pod" + uid_ + ".slice/docker-" + id1 + ".scope"
	for _, c := range []struct {
		name, text string
		want       Container
	}{
		{"version 2", "0::" + pod + "\n", Container{uid, id1, "docker"}},
		{"version 1, lxc issue 3890: not in all hierarchies", "12:rdma:/\n11:freezer:" + pod + "\n1:name=systemd:" + pod + "\n0::/\n", Container{uid, id1, "docker"}},
		{"version 1, controllers together", "4:cpu,cpuacct:" + pod + "\n", Container{uid, id1, "docker"}},
		{"colons in the path", "6:devices:/system.slice/containerd.service/kubepods-pod" + uid_ + ".slice:cri-containerd:" + id1 + "\n", Container{uid, id1, "containerd"}},
		{"the pod counts more than a container", "2:pids:/docker/" + id2 + "\n1:cpu:" + pod + "\n", Container{uid, id1, "docker"}},
		{"the first container", "2:pids:/docker/" + id2 + "\n1:cpu:/" + id1 + "\n", Container{"", id2, "docker"}},
		{"the host", "1:name=systemd:/system.slice/ssh.service\n0::/system.slice/ssh.service\n", Container{}},
		{"no end of line", "0::" + pod, Container{uid, id1, "docker"}},
		{"rubbish", "\n:\n::\nkubepods\n", Container{}},
		{"nothing", "", Container{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := containerOf(c.text); got != c.want {
				t.Errorf("containerOf(%q)\n = %+v\nwant %+v", c.text, got, c.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range paths {
		f.Add(c.path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		c, ok := Parse(path)
		if ok != (c != Container{}) {
			t.Errorf("Parse(%q) = %+v, %v", path, c, ok)
		}
		if c.ID != "" && (len(c.ID) != idLength || !isHex(c.ID) || !strings.Contains(path, c.ID)) {
			t.Errorf("Parse(%q): the ID %q", path, c.ID)
		}
		if c.ID == "" && c.Runtime != "" || strings.Contains(c.PodUID+c.Runtime, "/") {
			t.Errorf("Parse(%q) = %+v", path, c)
		}
		if utf8.ValidString(path) && !utf8.ValidString(c.PodUID+c.Runtime) {
			t.Errorf("Parse(%q) = %+v cuts a character", path, c)
		}
		if again, _ := Parse("/user.slice" + path); path != "" && path[0] == '/' && again.PodUID != "" {
			t.Errorf("Parse(%q) = %+v in user.slice", path, again)
		}
		if again, _ := Parse("/prefix" + path); path != "" && path[0] == '/' && c.PodUID != "" && again != c {
			t.Errorf("Parse(%q) = %+v, below another directory %+v", path, c, again)
		}
		if got := containerOf("0::" + path); !strings.Contains(path, "\n") && got != c {
			t.Errorf("containerOf(%q) = %+v, want %+v", path, got, c)
		}
	})
}
