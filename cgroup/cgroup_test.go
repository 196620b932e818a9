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
	id1   = "09d185410c4e25236cc24717f881589bb0978b24eafd101624e627a4dd8d3439"
	id2   = "3ad85da3fccbfd88a3f7b398a8adf6b5064a15a4bef5b6bfd687e1059d97f71e"
	uid   = "03f3f104-3215-44f2-9686-d4dd1f05a7ed"
	uid_  = "03f3f104_3215_44f2_9686_d4dd1f05a7ed" // the same UID in the form of a slice name
	uid2  = "1e597579-417e-482f-bf65-5fe170c3aebd"
	uid2_ = "1e597579_417e_482f_bf65_5fe170c3aebd"
)

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

// TestPodOf finds the pods of the paths in testdata/paths.txt. A line with a path follows one with its source.
func TestPodOf(t *testing.T) {
	text, err := os.ReadFile("testdata/paths.txt")
	if err != nil {
		t.Fatal(err)
	}
	source, count := "", 0
	for line := range strings.Lines(string(text)) {
		path, want, ok := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "  "), " -> ")
		if !ok {
			source = path
			continue
		}
		count++
		if got := podWith(t, "0::"+path+"\n"); got != strings.TrimPrefix(want, "-") {
			t.Errorf("%s: the pod of %q is %q, want %q", source, path, got, want)
		}
	}
	if count < 73 {
		t.Errorf("there are only %d paths", count)
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
