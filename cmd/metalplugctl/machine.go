// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is the files of a machine, and its processes.
type machine struct {
	root string // where its files are, or empty for /
	uid  int    // whose rights the doctor has

	label  func(name string) (string, error)                       // the SELinux label of a file
	number func(node string) (kind string, number string, ok bool) // "char" or "block", and MAJOR:MINOR of a node
}

// thisMachine is the one on which the program runs.
func thisMachine() machine {
	return machine{uid: os.Geteuid(), label: selinuxLabel, number: nodeNumber}
}

// path returns where a file of the machine is.
func (m machine) path(name string) string { return filepath.Join(m.root, name) }

// exists reports whether the machine has a file, also a link that leads nowhere.
func (m machine) exists(name string) bool {
	_, err := os.Lstat(m.path(name))
	return err == nil
}

// read returns a small file of the machine. It is empty if it cannot be read.
func (m machine) read(name string) string {
	text, err := os.ReadFile(m.path(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// unread is what to do about a file that could not be read: to become root, where that is what it lacks, or what else there
// is.
func (m machine) unread(err error, otherwise string) string {
	const denied = "it is denied even to root, as by SELinux or in a namespace: run it on the node itself; ausearch -m avc -ts recent"
	switch {
	case !errors.Is(err, fs.ErrPermission):
		return otherwise
	case m.uid == 0:
		return cmp.Or(otherwise, denied)
	case otherwise == "":
		return "run it as root"
	}
	return "run it as root; or " + otherwise
}

// same reports whether two paths are one directory, also through links.
func (m machine) same(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(m.path(a))
	if err != nil {
		return false
	}
	other, err := os.Stat(m.path(b))
	return err == nil && os.SameFile(one, other)
}

// auditLog is where auditd writes denials. auditSize is how much of its end is read, in bytes.
const (
	auditLog  = "/var/log/audit/audit.log"
	auditSize = 4 << 20
)

// denials counts those of our programs at the end of the audit log.
func (m machine) denials() (n int, err error) {
	f, err := os.Open(m.path(auditLog))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	_, _ = f.Seek(-auditSize, io.SeekEnd) // a shorter file is read from its beginning
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

// selinuxLabel reads the label of a file.
func selinuxLabel(name string) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(name, "security.selinux", buf)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(buf[:n]), "\x00"), nil
}

// nodeNumber reads what kind of node a file is, and its numbers.
func nodeNumber(name string) (kind, number string, ok bool) {
	var st unix.Stat_t
	if unix.Stat(name, &st) != nil {
		return "", "", false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		kind = "char"
	case unix.S_IFBLK:
		kind = "block"
	default:
		return "", "", false
	}
	return kind, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), true
}
