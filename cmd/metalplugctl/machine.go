// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// machine gives access to a node's files and processes.
type machine struct {
	root string // directory that contains the files of the node, or empty for /

	label func(name string) (string, error) // returns the SELinux label of a file
}

// path returns the path of a file on the node.
func (m machine) path(name string) string { return filepath.Join(m.root, name) }

// exists reports whether a file or link exists on the node. The target of a link may be missing.
func (m machine) exists(name string) bool {
	_, err := os.Lstat(m.path(name))
	return err == nil
}

// read returns the contents of a small file on the node, or "" if the file cannot be read.
func (m machine) read(name string) string {
	text, _ := os.ReadFile(m.path(name))
	return strings.TrimSpace(string(text))
}

// readRemedy returns the remedy for a file that could not be read. If permission was denied, the remedy is to run the command as
// root. For any other error, the remedy is the parameter "otherwise".
func readRemedy(err error, otherwise string) string {
	const asRoot = "run doctor as root, and not in a container; if that fails: ausearch -m avc -ts recent"
	switch {
	case !errors.Is(err, fs.ErrPermission):
		return otherwise
	case otherwise == "":
		return asRoot
	}
	return asRoot + "; or " + otherwise
}

// isSameDirectory reports whether two paths, which may be links, refer to the same directory.
func (m machine) isSameDirectory(a, b string) bool {
	// If a path does not exist, its info is nil, and SameFile returns false.
	one, _ := os.Stat(m.path(a))
	other, _ := os.Stat(m.path(b))
	return a == b || os.SameFile(one, other)
}

// auditLog is the file where auditd records denials. countDenials reads only the last auditSize bytes.
const (
	auditLog  = "/var/log/audit/audit.log"
	auditSize = 4 << 20
)

// countDenials counts the lines at the end of the audit log that contain both an SELinux denial and the word metalplug.
func (m machine) countDenials() (n int, err error) {
	f, err := os.Open(m.path(auditLog))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	_, _ = f.Seek(-auditSize, io.SeekEnd) // Seek fails if the file is shorter, and reading begins at its start
	text, err := io.ReadAll(io.LimitReader(f, 2*auditSize))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte("avc:  denied")) && bytes.Contains(line, []byte("metalplug")) {
			n++
		}
	}
	return n, nil
}

// selinuxLabel returns the label of a file.
func selinuxLabel(name string) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(name, "security.selinux", buf)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(buf[:n]), "\x00"), nil
}

// process is a running process that is or contains a kubelet.
type process struct {
	pid    string
	name   string
	args   []string // flags of the kubelet
	hidden bool     // whether some flags may be missing from args
}

// String returns the name and pid of the process.
func (p process) String() string { return fmt.Sprintf("%s (pid %s)", p.name, p.pid) }

// flag returns the value of a flag, or "" if the flag is not set. If the flag is set several times, the kubelet uses the last
// value.
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

// kubelets returns the running kubelets. The second result contains the kubelets in another mount namespace, such as the kubelet
// of a node that runs in a container. A path in such a kubelet's flags may lead to another file on the node.
func (m machine) kubelets() (here, elsewhere []process) {
	names, _ := filepath.Glob(m.path("/proc/[0-9]*/cmdline")) // Glob fails only for an invalid pattern
	own, ownErr := os.Readlink(m.path("/proc/self/ns/mnt"))
	for _, name := range names {
		p, ok := m.kubelet(filepath.Base(filepath.Dir(name)))
		if !ok {
			continue
		}
		mounts, err := os.Readlink(m.path("/proc/" + p.pid + "/ns/mnt")) // only root can read this file
		if err == nil && ownErr == nil && mounts != own {
			elsewhere = append(elsewhere, p)
			continue
		}
		if p.name == "kubelite" && mounts != "" { // a container may name any path
			p.args = m.argumentsFile(p.flag("kubelet-args-file"))
		}
		here = append(here, p)
	}
	return here, elsewhere
}

// kubelet returns the kubelet that a process contains, if the process runs as root. RKE2 and k0s run the kubelet as a separate
// process. In k3s, MicroK8s and MicroShift, the kubelet is part of the main process.
func (m machine) kubelet(pid string) (p process, ok bool) {
	if !m.ofRoot(pid) {
		return p, false
	}
	title, rest, _ := strings.Cut(m.read("/proc/"+pid+"/cmdline"), "\x00")
	// k3s replaces its own command line with "k3s server", which hides the flags.
	words := append(strings.Fields(title), strings.FieldsFunc(rest, func(r rune) bool { return r == 0 })...)
	if len(words) == 0 {
		return p, false
	}
	p = process{pid: pid, name: filepath.Base(words[0])}
	words = words[1:]
	runs := func(commands ...string) bool { return len(words) > 0 && slices.Contains(commands, words[0]) }
	if p.name == "kubelet" || p.name == "kubelite" {
		p.args = words
		return p, true
	}
	p.args, p.hidden = k3sKubeletFlags(words), true
	server := p.name == "k3s-server" || p.name == "k3s-agent"
	return p, server || p.name == "k3s" && runs("server", "agent") || p.name == "microshift" && runs("run")
}

// ofRoot reports whether a process belongs to the owner of /proc, which is root.
func (m machine) ofRoot(pid string) bool {
	var process, all unix.Stat_t
	return unix.Stat(m.path("/proc/"+pid), &process) == nil && unix.Stat(m.path("/proc"), &all) == nil && process.Uid == all.Uid
}

// k3sKubeletFlags returns the flags that k3s passes to its kubelet. For example, the argument --kubelet-arg=root-dir=/x contains
// the flag --root-dir=/x.
func k3sKubeletFlags(args []string) (flags []string) {
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

// argumentsFile returns the command-line arguments in a file that has one argument per line, as in MicroK8s. The arguments may
// contain the variable SNAP_COMMON, which has the same value on each node.
func (m machine) argumentsFile(name string) (args []string) {
	for line := range strings.Lines(m.read(name)) {
		args = append(args, strings.TrimSpace(strings.ReplaceAll(line, "${SNAP_COMMON}", "/var/snap/microk8s/common")))
	}
	return args
}
