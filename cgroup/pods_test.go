// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/integration/need"
)

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
