// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mounts has the mounts of a process (proc_pid_mountinfo(5)). For each mount it records whether an open file there can
// never be a device node. With the option nodev, this is certain. Mounts of file servers, which may never answer, count
// as nodev too. Only root can mount a file server in a way that allows opening its device nodes.
type mounts struct {
	byID     map[int]bool
	byDevice map[device]bool // the result for all mounts of a device
}

// servers are the file systems that a network server or a program provides. OrangeFS has the name pvfs2.
var servers = []string{
	"9p", "afs", "autofs", "ceph", "cifs", "coda", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "pvfs2", "smb3", "virtiofs",
}

// barren reports whether the mount of a file shows that the file is not an open device node. It finds the mount of a
// descriptor in /proc/PID/fdinfo (proc_pid_fdinfo(5)), and the mount of a mapping by its device. A descriptor opened with
// O_PATH does not keep a device in use.
func (r *scanner) barren(l link) bool {
	if r.mounts == nil {
		r.mounts = readMounts(l.task)
	}
	if l.file != (file{}) {
		return r.mounts.byDevice[l.file.device]
	}
	text, _ := os.ReadFile(l.task + "/fdinfo/" + l.name)
	var position, flags, id int
	_, err := fmt.Sscanf(string(text), "pos: %d\nflags: %o\nmnt_id: %d\n", &position, &flags, &id)
	return err == nil && (flags&unix.O_PATH != 0 || r.mounts.byID[id])
}

// maxMount is the maximum length of a line in bytes. The line of an overlay is long, because it lists all layers.
const maxMount = 1 << 20

// readMounts reads the mounts of a process. A mount that cannot be read is omitted.
func readMounts(task string) *mounts {
	all := &mounts{byID: make(map[int]bool), byDevice: make(map[device]bool)}
	info, err := os.Open(task + "/mountinfo")
	if err != nil {
		return all
	}
	defer info.Close()
	lines := bufio.NewScanner(info)
	lines.Buffer(nil, maxMount)
	for lines.Scan() {
		if id, d, barren, err := parseMount(lines.Text()); err == nil {
			all.byID[id] = barren
			before, another := all.byDevice[d]
			all.byDevice[d] = barren && (before || !another)
		}
	}
	return all
}

// parseMount parses a line ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS [TAGS…] - TYPE SOURCE OPTIONS.
func parseMount(line string) (id int, d device, barren bool, err error) {
	before, after, ok := strings.Cut(line, " - ")
	fields := strings.Fields(before)
	if !ok || len(fields) < 6 {
		return 0, d, false, fmt.Errorf("malformed mount %.80q", line)
	}
	if _, err := fmt.Sscanf(fields[0]+" "+fields[2], "%d %d:%d", &id, &d.major, &d.minor); err != nil {
		return 0, d, false, fmt.Errorf("malformed mount %.80q: %w", line, err)
	}
	kind, _, _ := strings.Cut(after, " ")
	kind, _, _ = strings.Cut(kind, ".") // the type may have a suffix, as in "fuse.sshfs"
	return id, d, slices.Contains(servers, kind) || slices.Contains(strings.Split(fields[5], ","), "nodev"), nil
}
