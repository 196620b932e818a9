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

// mounts has the mounts of a process (proc_pid_mountinfo(5)), and whether an open file below one is never a device node. It is
// never one below the option nodev, or if a server of files, which may never answer, has made it. Root alone can mount such a
// server so that nodes can be opened.
type mounts struct {
	byID     map[int]bool
	byDevice map[device]bool // of all mounts of it
}

// servers are the file systems that are served by a network or a program.
var servers = []string{
	"9p", "afs", "autofs", "ceph", "cifs", "coda", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "orangefs", "smb3", "virtiofs",
}

// barren reports whether the mount of a file says that it is not an open device node, of a descriptor by /proc/PID/fdinfo
// (proc_pid_fdinfo(5)) and of a mapping by its device. A descriptor that was opened with O_PATH keeps no device in use.
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

// maxMount bounds a line, in bytes, as an overlay names all its layers.
const maxMount = 1 << 20

// readMounts reads the mounts of a process. One that cannot be read is as if it were not there.
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

// parseMount reads a line of the form ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS [TAGS…] - TYPE SOURCE OPTIONS.
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
	kind, _, _ = strings.Cut(kind, ".") // "fuse.sshfs"
	return id, d, slices.Contains(servers, kind) || slices.Contains(strings.Split(fields[5], ","), "nodev"), nil
}
