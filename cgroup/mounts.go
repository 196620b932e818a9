// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is what a mount says about whether a file below it can be an open device node.
type mount int

const (
	otherMount  mount = iota // it may be one
	nodevMount               // it is none: the kernel opens no node there, or there can be none
	remoteMount              // it is none that counts: a network file system, or a program, has made it
)

// mounts are those of a process (proc_pid_mountinfo(5)).
type mounts struct {
	byID     map[int]mount
	byDevice map[device]mount
}

// kinds are the file systems in which no open file is a device node of its own: the kernel makes all that is in them, or a
// server does, which may never answer. Root alone can mount the latter so that nodes in them can be opened.
var kinds = map[string]mount{
	"autofs": nodevMount, "binfmt_misc": nodevMount, "bpf": nodevMount, "cgroup": nodevMount, "cgroup2": nodevMount,
	"configfs": nodevMount, "debugfs": nodevMount, "efivarfs": nodevMount, "fusectl": nodevMount, "hugetlbfs": nodevMount,
	"mqueue": nodevMount, "nfsd": nodevMount, "nsfs": nodevMount, "proc": nodevMount, "pstore": nodevMount,
	"resctrl": nodevMount, "rpc_pipefs": nodevMount, "securityfs": nodevMount, "selinuxfs": nodevMount, "sysfs": nodevMount,
	"tracefs": nodevMount, "vfat": nodevMount, "exfat": nodevMount,

	"9p": remoteMount, "afs": remoteMount, "ceph": remoteMount, "cifs": remoteMount, "coda": remoteMount,
	"fuse": remoteMount, "fuseblk": remoteMount, "lustre": remoteMount, "nfs": remoteMount, "nfs4": remoteMount,
	"orangefs": remoteMount, "smb3": remoteMount, "virtiofs": remoteMount,
}

// mountOf returns what the mount of a file says, of a descriptor by /proc/PID/fdinfo (proc_pid_fdinfo(5)) and of a mapping
// by its device. A descriptor that was opened with O_PATH keeps no device in use.
func (r *scanner) mountOf(l link) mount {
	if r.mounts == nil {
		r.mounts = readMounts(l.task)
	}
	if l.file != (file{}) {
		return r.mounts.byDevice[l.file.device]
	}
	text, err := os.ReadFile(l.task + "/fdinfo/" + l.name)
	if err != nil {
		return otherMount
	}
	id := -1
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch key {
		case "flags":
			if flags, err := strconv.ParseUint(value, 8, 64); err == nil && flags&unix.O_PATH != 0 {
				return nodevMount
			}
		case "mnt_id":
			if id, err = strconv.Atoi(value); err != nil {
				return otherMount
			}
			return r.mounts.byID[id]
		}
	}
	return otherMount
}

// readMounts reads the mounts of a process. One that cannot be read is as if it were not there. Of a device with several
// mounts the least that is said of one counts.
func readMounts(task string) *mounts {
	all := &mounts{byID: make(map[int]mount), byDevice: make(map[device]mount)}
	info, err := os.Open(task + "/mountinfo")
	if err != nil {
		return all
	}
	defer info.Close()
	lines := bufio.NewReaderSize(info, 64<<10)
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			return all
		}
		if id, d, m, err := parseMount(string(line)); !more && err == nil {
			all.byID[id] = m
			if before, ok := all.byDevice[d]; !ok || m < before {
				all.byDevice[d] = m
			}
		}
		for more && !errors.Is(err, io.EOF) {
			if _, more, err = lines.ReadLine(); err != nil {
				return all
			}
		}
	}
}

// parseMount reads a line: ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS [TAGS…] - TYPE SOURCE OPTIONS.
func parseMount(line string) (id int, d device, m mount, err error) {
	before, after, ok := strings.Cut(line, " - ")
	fields := strings.Fields(before)
	kind, _, _ := strings.Cut(after, " ")
	if !ok || len(fields) < 6 {
		return 0, d, m, fmt.Errorf("malformed mount %.80q", line)
	}
	id, err = strconv.Atoi(fields[0])
	major, minor, _ := strings.Cut(fields[2], ":")
	ma, majorErr := strconv.ParseUint(major, 10, 32)
	mi, minorErr := strconv.ParseUint(minor, 10, 32)
	if err := errors.Join(err, majorErr, minorErr); err != nil {
		return 0, d, m, err
	}
	kind, _, _ = strings.Cut(kind, ".") // "fuse.sshfs"
	m = kinds[kind]
	for option := range strings.SplitSeq(fields[5], ",") {
		if option == "nodev" && m == otherMount {
			m = nodevMount
		}
	}
	return id, device{uint32(ma), uint32(mi)}, m, nil
}
