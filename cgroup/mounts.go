// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mounts lists the mounts of a process (proc_pid_mountinfo(5)). A value is true if an open file on the mount is certainly not a
// device node. The value is true if the mount has the option nodev. A mount of a file server is treated as if it had nodev,
// because the server may never answer a query about a file. Only root can mount a file server without nodev.
type mounts struct {
	byID     map[int]bool
	byDevice map[device]bool // true only if the value is true for all mounts of the device
}

// fileServers lists the types of file systems that a network server or a user-space program provides. The kernel calls OrangeFS
// pvfs2.
var fileServers = []string{
	"9p", "afs", "autofs", "ceph", "cifs", "coda", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "pvfs2", "smb3", "virtiofs",
}

// cannotBeNode returns true only if a link certainly does not lead to an open device node. cannotBeNode returns true for a kernel
// object, and for a file on a mount that does not allow device nodes. For a mapped file, the device number identifies the mount.
func (r *scanner) cannotBeNode(l link) bool {
	id := 0
	if l.file == (file{}) {
		if isKernelObject(l) {
			return true
		}
		id = mountID(l.path())
	}
	if r.mounts == nil {
		r.mounts = r.readMounts(l.task)
	}
	return r.mounts.byID[id] || r.mounts.byDevice[l.file.device] // no mount has the ID 0 or the device 0:0
}

// isKernelObject reports whether a link leads to an object without a path, such as "socket:[7]", "pipe:[7]" or
// "anon_inode:[eventfd]". Such an object is never a device node.
func isKernelObject(l link) bool {
	var start [1]byte
	n, err := unix.Readlink(l.path(), start[:])
	return err == nil && n == 1 && start[0] != '/'
}

// mountID returns the ID of the mount that contains an open file, or 0 if it is unknown. The file in the fdinfo directory of
// another process (proc_pid_fdinfo(5)) may be too large to read. This file contains a line for each lock and for each entry of an
// epoll descriptor, and the kernel charges all lines to the reader's memory. Therefore, mountID opens the same file with O_PATH
// and reads the fdinfo of its own new descriptor, which has no such lines. Opening a file with O_PATH calls neither a driver nor
// a file server (fs/open.c, do_dentry_open).
func mountID(path string) (id int) {
	fd, _ := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) // if this fails, fd is -1, and the fdinfo file is not found
	defer unix.Close(fd)
	_, _, id = fdinfo(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	return id
}

// fdinfo returns the first three values in an fdinfo file. A value that cannot be read is 0.
func fdinfo(name string) (position, flags, mount int) {
	text, _ := readFile(name)
	_, _ = fmt.Sscanf(string(text), "pos: %d\nflags: %o\nmnt_id: %d\n", &position, &flags, &mount)
	return position, flags, mount
}

// maxMounts limits the number of mounts that are stored for a process. Each mount takes about 50 bytes. A kubelet's mount
// namespace contains a few thousand mounts.
const maxMounts = 1 << 13

// readMounts reads the mounts of a process. If readMounts cannot read all mounts, or if there are too many, the result is empty.
// A mount that was not read could allow device nodes.
func (r *scanner) readMounts(task string) *mounts {
	all := &mounts{byID: make(map[int]bool), byDevice: make(map[device]bool)}
	info, err := openFile(task+"/mountinfo", 0)
	if err != nil {
		return all
	}
	defer info.Close()
	err = r.eachLine(info, func(line []byte) error {
		id, d, barren, err := parseMount(string(line))
		before, another := all.byDevice[d]
		all.byID[id], all.byDevice[d] = barren, barren && (before || !another)
		if len(all.byID) > maxMounts {
			return ErrIncomplete
		}
		return err
	})
	if err != nil {
		return &mounts{}
	}
	return all
}

// parseMount parses a line ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS [TAGS…] - TYPE SOURCE OPTIONS. If the line was cut off before
// the type, parseMount assumes that the mount allows device nodes.
func parseMount(line string) (id int, d device, barren bool, err error) {
	var parent int
	if _, err := fmt.Sscanf(line, "%d %d %d:%d ", &id, &parent, &d.major, &d.minor); err != nil {
		return 0, d, false, fmt.Errorf("malformed mount %.80q: %w", line, err)
	}
	before, after, _ := strings.Cut(line, " - ")
	kind, _, ok := strings.Cut(after, " ")
	fields := strings.Fields(before)
	if !ok || len(fields) < 6 {
		return id, d, false, nil
	}
	kind, _, _ = strings.Cut(kind, ".") // the type may have a suffix, as in "fuse.sshfs"
	return id, d, slices.Contains(fileServers, kind) || slices.Contains(strings.Split(fields[5], ","), "nodev"), nil
}
