// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// machine gives access to the files and processes of a node.
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

// read returns the content of a small file on the node, or "" if the file cannot be read.
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
