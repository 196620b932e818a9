// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/integration/need"
)

const (
	id1    = "09d185410c4e25236cc24717f881589bb0978b24eafd101624e627a4dd8d3439"
	id2    = "3ad85da3fccbfd88a3f7b398a8adf6b5064a15a4bef5b6bfd687e1059d97f71e"
	uid    = "03f3f104-3215-44f2-9686-d4dd1f05a7ed"
	uid_   = "03f3f104_3215_44f2_9686_d4dd1f05a7ed" // the same UID in the form of a slice name
	uid2   = "1e597579-417e-482f-bf65-5fe170c3aebd"
	uid2_  = "1e597579_417e_482f_bf65_5fe170c3aebd"
	static = "187bff14cccb94f179e943eacce55bb3" // netdata/netdata issue 4868
)

// paths are the known forms of cgroup paths, each with its source. Their IDs and UIDs are replaced by the ones above.
var paths = []struct {
	from string
	path string
	want string
}{
	// created by the cgroupfs driver, see kubernetes pkg/kubelet/cm/cgroup_manager_linux.go, containerd
	// internal/cri/server getCgroupsPath
	{"kubelet cgroupfs, containerd, guaranteed", "/kubepods/pod" + uid + "/" + id1, uid},
	{"kubelet cgroupfs, containerd, burstable", "/kubepods/burstable/pod" + uid + "/" + id1, uid},
	{"kubelet cgroupfs, containerd, best effort", "/kubepods/besteffort/pod" + uid + "/" + id1, uid},
	{"kubelet cgroupfs, the pod itself", "/kubepods/besteffort/pod" + uid, uid},
	{"kubelet cgroupfs, static pod", "/kubepods/burstable/pod" + static + "/" + id1, static},
	{"kubelet cgroupfs, a manifest with a UID of its own", "/kubepods/podmy_static-pod.1/" + id1, "my_static-pod.1"},
	{"cri-o internal/config/cgmgr cgroupfs", "/kubepods/burstable/pod" + uid + "/crio-" + id1, uid},
	{"cri-o cgroupfs, conmon", "/kubepods/burstable/pod" + uid + "/crio-conmon-" + id1, uid},
	{"kubelet --cgroup-root=/prefix, cgroupfs", "/prefix/kubepods/besteffort/pod" + uid + "/" + id1, uid},
	{"kind before 0.12, cgroupfs", "/kubelet/kubepods/burstable/pod" + uid + "/" + id1, uid},
	{"kata-containers, sandbox_cgroup_only", "/kubepods/besteffort/pod" + uid + "/kata_" + id1, uid},

	// created by the systemd driver, see opencontainers/cgroups systemd ExpandSlice
	{"cryptnono issue 47, k3s", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", uid},
	{"netdata issue 4868, burstable", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", uid},
	{"netdata issue 4868, static pod", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + static + ".slice/cri-containerd-" + id1 + ".scope", static},
	{"kata-containers pull 11598, guaranteed", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", uid},
	{"runc issue 4620, cri-o", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/crio-" + id1 + ".scope", uid},
	{"cri-o with crun, /container", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/crio-" + id1 + ".scope/container", uid},
	{"cri-o, conmon_cgroup = pod", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-conmon-" + id1 + ".scope", uid},
	{"pharos-cluster issue 440, dockershim", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid_ + ".slice/docker-" + id1 + ".scope", uid},
	{"lxc issue 3890, docker, the pod itself", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice", uid},
	{"systemd in a container", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope/init.scope", uid},
	{"systemd in a container, a service", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope/system.slice/ssh.service", uid},
	{"docker in a container", "/kubepods/burstable/pod" + uid + "/" + id1 + "/docker/" + id2, uid},
	{"kind issue 3947", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", uid},
	{"containerd/nri pull 227, guaranteed", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", uid},
	{"kubelet --cgroup-root=/a/b, systemd", "/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod" + uid_ + ".slice/crio-" + id1 + ".scope", uid},

	// kubelet with the systemd driver, containerd with cgroupfs
	{"opentelemetry-java issue 4507, at the root", "/kubepods-besteffort-pod" + uid_ + ".slice:cri-containerd:" + id1, uid},
	{"opentelemetry-java issue 4507, in the service", "/system.slice/containerd.service/kubepods-besteffort-pod" + uid_ + ".slice:cri-containerd:" + id1, uid},
	{"apm-agent-nodejs issue 3550", "/system.slice/containerd.service/kubepods-burstable-pod" + uid_ + ".slice:cri-containerd:" + id1, uid},
	{"mixed, guaranteed, static pod", "/system.slice/containerd.service/kubepods-pod" + static + ".slice:cri-containerd:" + id1, static},
	{"mixed, with a cgroup below", "/system.slice/containerd.service/kubepods-pod" + uid_ + ".slice:cri-containerd:" + id1 + "/init.scope", uid},
	{"mixed, kind", "/system.slice/containerd.service/kubelet-kubepods-pod" + uid_ + ".slice:cri-containerd:" + id1, uid},

	// a node that is a container, seen from outside
	{"minikube issue 11280", "/docker/" + id2 + "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid_ + ".slice/crio-" + id1 + ".scope", uid},
	{"kind before 0.12, from the host", "/docker/" + id2 + "/kubelet/kubepods/burstable/pod" + uid + "/" + id1, uid},
	{"kind on cgroup 2, from the host", "/system.slice/docker-" + id2 + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", uid},
	{"minikube's node without pods", "/docker/" + id2 + "/system.slice/kubelet.service", ""},
	{"a kubelet in a pod: ours is the outer one", "/kubepods/pod" + uid + "/" + id1 + "/kubelet/kubepods/burstable/pod" + uid2 + "/" + id2, uid},
	{"the same with systemd", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + id1 + ".scope/kubepods.slice/kubepods-pod" + uid2_ + ".slice/crio-" + id2 + ".scope", uid},

	// from inside another cgroup namespace, see kernel/cgroup/cgroup.c cgroup_path_ns, cgroup_namespaces(7)
	{"from a sibling container", "/../" + id1, ""},
	{"from another pod of that class, cgroupfs", "/../../pod" + uid + "/" + id1, uid},
	{"from another class, cgroupfs", "/../../../besteffort/pod" + uid + "/" + id1, uid},
	{"from another pod, systemd", "/../../kubepods-burstable-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope", uid},
	{"from a service of the host", "/../../kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + id1 + ".scope/container", uid},
	{"some directory of somebody's", "/../../pods/" + id1[:12], ""},
	{"another one", "/../podium", ""},

	// containers that belong to no pod
	{"opentelemetry-java-instrumentation ContainerInfoTest, docker", "/docker/" + id1, ""},
	{"neuvector cgroup_test, docker with systemd", "/system.slice/docker-" + id1 + ".scope", ""},
	{"neuvector cgroup_test, docker in docker's namespace", "/" + id1, ""},
	{"podman, root", "/machine.slice/libpod-" + id1 + ".scope/container", ""},
	{"podman, conmon", "/machine.slice/libpod-conmon-" + id1 + ".scope", ""},
	{"podman, cgroupfs", "/libpod_parent/libpod-" + id1, ""},
	{"podman, rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id1 + ".scope/container", ""},
	{"nerdctl with systemd", "/system.slice/nerdctl-" + id1 + ".scope", ""},
	{"nerdctl, cgroupfs", "/default/" + id1, ""},
	{"kata-containers pull 11598, overhead", "/kata_overhead/" + id1, ""},
	{"ContainerInfoTest, ECS", "/ecs/classic/5a0d5ceddf6c44c1928d367a815d890f/" + id1, ""},

	{"a kubelet of a user", "/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/" + id1, ""},

	// Removed, in version 2, see kernel/cgroup/cgroup.c proc_cgroup_show
	{"removed, with a zombie", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + id1 + ".scope (deleted)", uid},

	// the host
	{"the root", "/", ""},
	{"nothing", "", ""},
	{"a service", "/system.slice/containerd.service", ""},
	{"an instance of a service", "/system.slice/system-metalplug\\x2dreset.slice/metalplug-reset@3-1-0.service", ""},
	{"a session", "/user.slice/user-1000.slice/session-3.scope", ""},
	{"the slice of all pods", "/kubepods.slice", ""},
	{"the slice of a class", "/kubepods.slice/kubepods-burstable.slice", ""},
	{"the directory of a class", "/kubepods/burstable", ""},
	{"a user who calls a cgroup so", "/user.slice/user-1000.slice/user@1000.service/kubepods-pod" + uid_ + ".slice/x.service", ""},
	{"a slice that only looks like it", "/mykubepods-pod" + uid_ + ".slice", ""},
	{"a slice below the one of a pod", "/kubepods-pod" + uid_ + "-x.slice", ""},
	{"a pod's name elsewhere", "/machine.slice/pod" + uid, ""},
	{"cryptnono issue 47, buildkit", "/docker/buildkit/t4967jvf8rbufklrhkicskyes", ""},
	{"digits behind a letter", "/x" + id1, ""},
	{"upper case", "/docker/" + strings.ToUpper(id1), ""},
}

// podWith returns the pod to which a process with the given text in its cgroup file is assigned.
func podWith(t *testing.T, text string) string {
	t.Helper()
	proc := newTree(t)
	proc.write("1/cgroup", text)
	proc.link("1/fd/0", "/dev/null")
	got, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
	if err != nil || len(got.Holders) != 1 {
		t.Fatalf("Holders = %+v, %v", got, err)
	}
	return got.Holders[0].PodUID
}

func TestPodOf(t *testing.T) {
	for _, c := range paths {
		if got := podWith(t, "0::"+c.path+"\n"); got != c.want {
			t.Errorf("%s: the pod of %q is %q, want %q", c.from, c.path, got, c.want)
		}
	}
}

func TestPodIn(t *testing.T) {
	pod := "/kubepods.slice/kubepods-pod" + uid_ + ".slice/docker-" + id1 + ".scope"
	for _, c := range []struct {
		name, text string
		want       string
	}{
		{"version 2", "0::" + pod + "\n", uid},
		{"version 1, lxc issue 3890: not in all hierarchies", "12:rdma:/\n11:freezer:" + pod + "\n1:name=systemd:" + pod + "\n0::/\n", uid},
		{"version 1, controllers together", "4:cpu,cpuacct:" + pod + "\n", uid},
		{"colons in the path", "6:devices:/system.slice/containerd.service/kubepods-pod" + uid_ + ".slice:cri-containerd:" + id1 + "\n", uid},
		{"the pod counts more than a container", "2:pids:/docker/" + id2 + "\n1:cpu:" + pod + "\n", uid},
		{"the first container", "2:pids:/docker/" + id2 + "\n1:cpu:/" + id1 + "\n", ""},
		{"the host", "1:name=systemd:/system.slice/ssh.service\n0::/system.slice/ssh.service\n", ""},
		{"no end of line", "0::" + pod, uid},
		{"rubbish", "\n:\n::\nkubepods\n", ""},
		{"nothing", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := podWith(t, c.text); got != c.want {
				t.Errorf("the pod of %q is %q, want %q", c.text, got, c.want)
			}
		})
	}
}

func TestPods(t *testing.T) {
	for _, c := range []struct {
		name string
		dirs []string
		want []string
		err  error
	}{
		{"no kubelet yet", []string{"system.slice", "init.scope"}, nil, cgroup.ErrNoKubepods},
		{"no pods", []string{"kubepods/burstable"}, nil, nil},
		{"cgroupfs", []string{
			"kubepods/burstable/poda/" + id1, "kubepods/besteffort/podb", "kubepods/podc", "kubepods/x", "kubepods/burstable/x", "podx", "x/podx",
		}, []string{"a", "b", "c"}, nil},
		{"systemd", []string{
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/cri-containerd-" + id1 + ".scope",
			"kubepods.slice/kubepods-pod" + uid2_ + ".slice", "kubepods.slice/kubepods-besteffort.slice",
		}, []string{uid, uid2}, nil},
		{"kind", []string{"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + uid_ + ".slice"}, []string{uid}, nil},
		{"a prefix of two directories", []string{"a/b/kubepods/poda"}, []string{"a"}, nil},
		{"one of four", []string{"a/b/c/d/kubepods/poda"}, []string{"a"}, nil},
		{"one below services", []string{"system.slice/system-kubepods.slice/system-kubepods-poda.slice"}, []string{"a"}, nil},
		{"in a service", []string{"system.slice/k3s.service/kubepods/burstable/poda"}, []string{"a"}, nil},
		{"what is left of another --cgroup-root", []string{"kubepods.slice", "a/b/c/kubepods/poda"}, []string{"a"}, nil},
		{"cgroups-per-qos=false", []string{"system.slice/cri-containerd-" + id1 + ".scope"}, nil, cgroup.ErrNoKubepods},
		{"one pod twice, with both drivers", []string{"kubepods/poda", "kubepods.slice/kubepods-poda.slice"}, []string{"a"}, nil},
		{"the pods of others", []string{
			"kubepods/poda/" + id1 + "/kubepods/podx", "docker/" + id2 + "/kubepods/podx",
			"user.slice/kubepods/podx", "machine.slice/kubepods/podx", "docker-" + id2 + ".scope/kubepods/podx",
		}, []string{"a"}, nil},
	} {
		for _, version := range []string{"1", "2"} {
			t.Run(c.name+", cgroup "+version, func(t *testing.T) {
				root := tree{t, t.TempDir()}
				dir := "memory/"
				if version == "2" {
					dir = ""
					root.write("cgroup.controllers", "")
				}
				root.write(dir+"cgroup.procs", "")
				for _, d := range c.dirs {
					root.write(dir+d+"/cgroup.procs", "1\n")
				}
				for _, pod := range []string{"a", "b", "c", "x", uid, uid2} {
					if got, err := cgroup.Populated(root.dir, pod); got != slices.Contains(c.want, pod) || !errors.Is(err, c.err) {
						t.Errorf("pod %s: %v, %v, want %q, %v", pod, got, err, c.want, c.err)
					}
				}
			})
		}
	}
	if got, err := cgroup.Populated(t.TempDir(), "a"); got || !errors.Is(err, fs.ErrNotExist) || errors.Is(err, cgroup.ErrNoKubepods) {
		t.Errorf("pods where no cgroups are: %v, %v", got, err)
	}
}

func TestPopulated(t *testing.T) {
	for kind, newRoot := range roots {
		if kind == "plain" {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			r := newRoot(t)
			if got, err := cgroup.Populated(r.root, "a"); got || !errors.Is(err, cgroup.ErrNoKubepods) {
				t.Errorf("without a kubelet: %v, %v", got, err)
			}
			r.do("+kubepods", "+kubepods/poda", "+kubepods/poda/"+id1, "+kubepods/podb")
			check := func(uid string, want bool) {
				t.Helper()
				if got, err := cgroup.Populated(r.root, uid); got != want || err != nil {
					t.Errorf("Populated(%q) = %v, %v, want %v", uid, got, err, want)
				}
			}
			check("a", false)
			pid, _ := child(t, "idle")
			r.move(pid, "kubepods/poda/"+id1)
			check("a", true)
			check("b", false)
			check("c", false)
			r.move(pid, "")
			check("a", false)
		})
	}
}

// move moves a process into a cgroup, and out of it at the end of the test.
func (r root) move(pid int, cgroup string) {
	r.Helper()
	dir := filepath.Join(r.dir, cgroup)
	if cgroup == "" {
		dir = filepath.Dir(r.dir)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, pid), 0); err != nil {
		need.Lacks(r.T, "root", "no process can be moved into %s: %v", dir, err)
	}
}
