// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// defaultRoot is the kubelet's --root-dir unless its command line says otherwise (kubernetes v1.36
	// cmd/kubelet/app/options/options.go, defaultRootDir).
	defaultRoot = "/var/lib/kubelet"
	// devicePluginDir is a constant in the kubelet: --root-dir does not move it (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1,
	// constants.go; kubernetes#120626).
	devicePluginDir = "/var/lib/kubelet/device-plugins"
)

// process is a running program that is a kubelet, or has one in it.
type process struct {
	pid    string
	name   string
	args   []string // flags of the kubelet
	hidden bool     // the command line need not show them all
}

// String names it.
func (p process) String() string { return fmt.Sprintf("%s (pid %s)", p.name, p.pid) }

// flag returns the last value of a flag, as the kubelet takes it; empty: it is not there.
func (p process) flag(name string) (value string) {
	for i, arg := range p.args {
		key, of, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case key != name || !strings.HasPrefix(arg, "-"):
		case ok:
			value = strings.Trim(of, `"`)
		case i+1 < len(p.args):
			value = p.args[i+1]
		}
	}
	return value
}

// kubelets returns the kubelets that run, and those in another mount namespace, as of a node in a container, whose paths are
// not those of this one.
func (d *doctor) kubelets() (here, elsewhere []process) {
	names, _ := filepath.Glob(d.path("/proc/[0-9]*/cmdline")) // the pattern is well-formed
	own, ownErr := os.Readlink(d.path("/proc/self/ns/mnt"))
	for _, name := range names {
		p, ok := d.kubelet(filepath.Base(filepath.Dir(name)))
		if !ok {
			continue
		}
		mounts, err := os.Readlink(d.path("/proc/" + p.pid + "/ns/mnt")) // for root alone
		if err == nil && ownErr == nil && mounts != own {
			elsewhere = append(elsewhere, p)
			continue
		}
		here = append(here, p)
	}
	return here, elsewhere
}

// kubelet reports whether a process of root's is a kubelet. RKE2 and k0s run the kubelet as a process of its own; k3s, MicroK8s and
// MicroShift have it in theirs.
func (d *doctor) kubelet(pid string) (p process, ok bool) {
	if !d.ofRoot(pid) {
		return p, false
	}
	words := strings.FieldsFunc(d.read("/proc/"+pid+"/cmdline"), func(r rune) bool { return r == 0 })
	if len(words) == 0 {
		return p, false
	}
	title := strings.Fields(words[0]) // k3s writes "k3s server" in its place, and hides its flags
	if len(title) == 0 {
		return p, false
	}
	p = process{pid: pid, name: filepath.Base(title[0])}
	rest := slices.Concat(title[1:], words[1:])
	first := ""
	if len(rest) > 0 {
		first = rest[0]
	}
	switch p.name {
	case "kubelet":
		p.args = rest
	case "kubelite":
		p.args = d.argumentsFile(pid, process{args: rest}.flag("kubelet-args-file"))
	case "k3s-server", "k3s-agent":
		p.args, p.hidden = passedOn(rest), true
	case "k3s":
		p.args, p.hidden = passedOn(rest), true
		return p, first == "server" || first == "agent"
	case "microshift":
		p.hidden = true
		return p, first == "run"
	default:
		return p, false
	}
	return p, true
}

// ofRoot reports whether a process is of the user who owns /proc, which is root.
func (d *doctor) ofRoot(pid string) bool {
	var process, all unix.Stat_t
	return unix.Stat(d.path("/proc/"+pid), &process) == nil && unix.Stat(d.path("/proc"), &all) == nil && process.Uid == all.Uid
}

// passedOn returns the flags that k3s passes on to its kubelet: --kubelet-arg=root-dir=/x.
func passedOn(args []string) (flags []string) {
	for i, arg := range args {
		value, ok := strings.CutPrefix(arg, "--kubelet-arg=")
		if arg == "--kubelet-arg" && i+1 < len(args) {
			value, ok = args[i+1], true
		}
		if ok {
			flags = append(flags, "--"+strings.TrimLeft(value, "-"))
		}
	}
	return flags
}

// argumentsFile returns the lines of a file with arguments, as MicroK8s has one, with the variables of the process in the place
// of their names.
func (d *doctor) argumentsFile(pid, name string) (args []string) {
	environment := make(map[string]string)
	for _, of := range strings.Split(d.read("/proc/"+pid+"/environ"), "\x00") { // for root alone
		key, value, _ := strings.Cut(of, "=")
		environment[key] = value
	}
	environment["SNAP_COMMON"] = cmp.Or(environment["SNAP_COMMON"], "/var/snap/microk8s/common")
	for line := range strings.Lines(d.read(name)) {
		args = append(args, strings.TrimSpace(os.Expand(line, func(key string) string { return environment[key] })))
	}
	return args
}

// checkRootDir compares the directories of the running kubelets with [paths].
func (d *doctor) checkRootDir() []finding {
	const check = "kubelet's directories"
	here, elsewhere := d.kubelets()
	var found []finding
	for _, p := range here {
		found = append(found, d.compareRoot(check, p)...)
	}
	for _, p := range elsewhere {
		found = append(found, skip(check, "compare [paths] with where its directories are mounted on this node: /proc/"+p.pid+"/mountinfo",
			"%s is in a mount namespace of its own", p)...)
	}
	return found
}

// compareRoot compares the directories of a kubelet with [paths].
func (d *doctor) compareRoot(check string, p process) (found []finding) {
	if ours := d.config.Paths.DevicePlugins; !d.same(ours, devicePluginDir) {
		found = append(found, fail(check, "remove device_plugins from [paths]; then: "+restart,
			"%s listens in %s whatever its --root-dir is, and paths.device_plugins is %s: nothing is registered", p, devicePluginDir, ours)...)
	}
	root := cmp.Or(p.flag("root-dir"), defaultRoot)
	if p.hidden && p.flag("root-dir") == "" {
		return append(found, ok(check, "%s does not show its --root-dir; paths.pod_resources is %s", p, d.config.Paths.PodResources)...)
	}
	theirs := filepath.Join(root, "pod-resources")
	if ours := filepath.Dir(d.config.Paths.PodResources); !d.same(ours, theirs) {
		remedy := fmt.Sprintf("set paths.pod_resources = %q, and write the files of metalplugd(8), OTHER DIRECTORIES; then: %s",
			filepath.Join(theirs, "kubelet.sock"), restart)
		found = append(found, fail(check, remedy,
			"%s has --root-dir %s, and paths.pod_resources is in %s: which pod holds a device is not known", p, root, ours)...)
	}
	if len(found) == 0 {
		return ok(check, "%s has --root-dir %s, as [paths] says", p, root)
	}
	return found
}

// same reports whether two paths are one directory, also through links.
func (d *doctor) same(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(d.path(a))
	if err != nil {
		return false
	}
	other, err := os.Stat(d.path(b))
	return err == nil && os.SameFile(one, other)
}
