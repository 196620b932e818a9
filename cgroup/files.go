// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// device is the number of the device that contains a file system. The device may be virtual.
type device struct{ major, minor uint32 }

// file identifies a mapped file by its device and inode, as /proc/PID/maps does.
type file struct {
	device
	inode uint64
}

// addresses is the address range that a file is mapped to.
type addresses struct{ from, to uint64 }

// String returns the name of the link in /proc/PID/map_files. The numbers in this name have no leading zeros (%lx), unlike those
// in /proc/PID/maps (%08lx).
func (a addresses) String() string {
	return strconv.FormatUint(a.from, 16) + "-" + strconv.FormatUint(a.to, 16)
}

// readDescriptors finds the devices that a thread has open, and adds them to the map "held". readDescriptors follows the links in
// /proc/PID/fd to the open files, but does not read the links' text. The text may be a path in another mount namespace or the
// path of a deleted node.
func (r *scanner) readDescriptors(task string, held map[Number]bool) error {
	dir := task + "/fd"
	fd, err := openFile(dir, unix.O_DIRECTORY)
	if err != nil {
		return skipGone(err)
	}
	defer fd.Close()
	return skipGone(eachName(fd, dir, func(names []string) error {
		for _, name := range names {
			if err := r.countAnswer(); err != nil {
				return err
			}
			l := link{dirfd: int(fd), dir: dir, name: name, task: task}
			if r.careful && r.cannotBeNode(l) {
				continue
			}
			number, _, err := r.look(l)
			if err := skipGone(err); err != nil && !r.isHarmless(l) {
				return &os.PathError{Op: "stat", Path: dir + "/" + name, Err: err}
			}
			if r.wanted[number] && !l.onlyPath() {
				held[number] = true
			}
		}
		return nil
	}))
}

// readMappings finds the devices that a process has mapped, and adds them to the map "held". /proc/PID/maps shows the path and
// the inode of each mapped file. The device number of a mapped device node is available only through the links in map_files
// (proc_pid_map_files(5)). A scan inspects each file once, because most mapped files are libraries that many processes share. If
// the links to a listed file have vanished, the process has moved or removed the mapping. In this case, the next round uses the
// new links, if there are any.
func (r *scanner) readMappings(task string, held map[Number]bool) error {
	var missed map[file]bool // nil means all files
	for range passes {
		again := make(map[file]bool)
		err := r.eachMapping(task, func(at addresses, f file) error {
			if f.inode == 0 || f.device == r.memory || missed != nil && !missed[f] {
				return nil
			}
			number, err := r.mappedNumber(task, at, f)
			if isGone(err) {
				again[f] = true
				return nil
			}
			if r.wanted[number] {
				held[number] = true
			}
			return err
		})
		if err != nil || len(again) == 0 {
			return err
		}
		missed = again
	}
	for f := range missed {
		if !r.cannotBeNode(link{task: task, file: f}) {
			return fmt.Errorf("read %s/maps: the mappings keep changing", task)
		}
	}
	return nil
}

// mappedNumber returns the number of the wanted device that a mapped file is a node of, or zero if there is none.
func (r *scanner) mappedNumber(task string, at addresses, mapped file) (Number, error) {
	r.mu.Lock()
	number, known := r.mapped[mapped]
	r.mu.Unlock()
	if known {
		return number, nil
	}
	l := link{dirfd: unix.AT_FDCWD, dir: task + "/map_files", name: at.String(), task: task, file: mapped}
	if r.careful && r.cannotBeNode(l) {
		return Number{}, nil
	}
	number, f, err := r.look(l)
	switch {
	case isGone(err):
		return Number{}, err
	case err != nil && r.isHarmless(l):
		return Number{}, nil
	case err != nil:
		return Number{}, &os.PathError{Op: "stat", Path: l.dir + "/" + l.name, Err: err}
	}
	// On btrfs and overlays, /proc/PID/maps shows a device number that several files may share and that belongs to no block
	// device. stat(2) returns another number (btrfs_getattr, ovl_map_dev_ino).
	if f == l.file || l.file.major != 0 {
		r.mu.Lock()
		if len(r.mapped) < maxFiles {
			r.mapped[l.file] = number
		}
		r.mu.Unlock()
	}
	return number, nil
}

// eachMapping calls f for each mapping of a process. Inode 0 means memory that is not backed by a file. Since Linux 6.11,
// eachMapping can query the numbers without the paths (PROCMAP_QUERY in include/uapi/linux/fs.h). To produce the text of
// /proc/PID/maps, the kernel must also format the paths, which takes most of the time. A process can choose long paths.
func (r *scanner) eachMapping(task string, f func(at addresses, of file) error) error {
	maps, err := openFile(task+"/maps", 0)
	if err != nil {
		return skipGone(err)
	}
	defer maps.Close()
	query := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), flags: procmapNextOrCovering | procmapFileBacked}
	for asked := false; ; asked = true {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(maps), procmapQueryIoctl, uintptr(unsafe.Pointer(&query)))
		late := r.countAnswer()
		switch {
		case late != nil:
			return late
		case errno == 0:
		case isGone(errno): // the process has no more mappings
			return nil
		case errno == unix.EINTR:
			continue
		case asked:
			return &os.PathError{Op: "query", Path: task + "/maps", Err: errno}
		default:
			return r.eachText(maps, f)
		}
		of := file{device{query.devMajor, query.devMinor}, query.inode}
		if err := f(addresses{query.start, query.end}, of); err != nil {
			return err
		}
		query = procmapQuery{size: query.size, flags: query.flags, addr: query.end}
	}
}

// procmapQuery is struct procmap_query in include/uapi/linux/fs.h.
type procmapQuery struct {
	size, flags, addr          uint64
	start, end, vmaFlags, page uint64
	offset, inode              uint64
	devMajor, devMinor         uint32
	nameSize, buildIDSize      uint32
	name, buildID              uint64
}

const (
	procmapQueryIoctl     = 0xc0686611 // _IOWR('f', 17, struct procmap_query)
	procmapNextOrCovering = 0x10       // PROCMAP_QUERY_COVERING_OR_NEXT_VMA
	procmapFileBacked     = 0x20       // PROCMAP_QUERY_FILE_BACKED_VMA
)

// eachText does the same as eachMapping on old kernels, which lack PROCMAP_QUERY. eachText reads the text of /proc/PID/maps
// (proc_pid_maps(5)).
func (r *scanner) eachText(maps descriptor, f func(at addresses, of file) error) error {
	return r.eachLine(maps, func(line []byte) error {
		at, of, err := parseMapping(line)
		if err != nil {
			return fmt.Errorf("read a mapping: %w", err)
		}
		return f(at, of)
	})
}

// maxLine limits how many bytes of a line are stored. Lines contain paths, and a process can choose long paths.
const maxLine = 8 << 10

// eachLine calls f for each line of a procfs file. eachLine truncates each line to maxLine bytes.
func (r *scanner) eachLine(file descriptor, f func(line []byte) error) error {
	lines := bufio.NewReaderSize(file, maxLine)
	rest := false // true in the middle of a line
	for {
		line, more, err := lines.ReadLine()
		if err := r.countAnswer(); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return skipGone(err)
		}
		if !rest {
			if err := f(line); err != nil {
				return err
			}
		}
		rest = more
	}
}

// parseMapping parses a line of /proc/PID/maps, in the form ADDRESSES PERMISSIONS OFFSET DEVICE INODE PATH.
func parseMapping(line []byte) (at addresses, f file, err error) {
	fields := strings.SplitN(string(line), " ", 6)
	if len(fields) < 5 {
		return addresses{}, file{}, fmt.Errorf("%.80q", line)
	}
	from, to, _ := strings.Cut(fields[0], "-")
	major, minor, _ := strings.Cut(fields[3], ":")
	var n [5]uint64
	for i, digits := range [...]string{from, to, major, minor, fields[4]} {
		if n[i], err = strconv.ParseUint(digits, [...]int{16, 16, 16, 16, 10}[i], 64); err != nil {
			return addresses{}, file{}, fmt.Errorf("%.80q", line)
		}
	}
	return addresses{n[0], n[1]}, file{device{uint32(n[2]), uint32(n[3])}, n[4]}, nil
}

// kernelTmpfs returns the device number of the kernel's internal tmpfs, which memfd_create(2) and shared anonymous memory use.
// No process can create a device node in this tmpfs (mm/shmem.c, shm_mnt). kernelTmpfs returns zero if the number is unknown.
func kernelTmpfs() (d device) {
	page, err := unix.Mmap(-1, 0, 1, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return device{}
	}
	defer unix.Munmap(page)
	start := uint64(uintptr(unsafe.Pointer(&page[0])))
	_ = (&scanner{owner: &owner{}}).eachMapping("/proc/self", func(at addresses, f file) error {
		if at.from == start {
			d = f.device
		}
		return nil
	})
	return d
}

// link is a link in procfs to a file that a process has open or mapped.
type link struct {
	dirfd     int // descriptor of dir, or AT_FDCWD
	dir, name string
	task      string // procfs directory of the thread
	file      file   // zero for a file that is open but not mapped
}

func (l link) path() string { return l.dir + "/" + l.name }

// onlyPath reports whether a descriptor was opened with O_PATH. An O_PATH descriptor gives no access to the device and does not
// keep it in use. A pod with CAP_MKNOD can create a node for any device and open the node with O_PATH. For an O_PATH descriptor,
// the mode of the link in procfs grants no permission (fs/proc/fd.c, tid_fd_update_inode). The mode is the same for a device that
// was opened with the access mode 3, so onlyPath also reads the flags.
func (l link) onlyPath() bool {
	var st unix.Stat_t
	if err := unix.Lstat(l.path(), &st); err != nil || st.Mode&0o700 != 0 {
		return false
	}
	flags, _ := fdinfo(l.task + "/fdinfo/" + l.name)
	return flags&unix.O_PATH != 0
}

// look returns the identity of a file. If the file is a node of a wanted device, look also returns the device's number.
// Otherwise, the number is zero. look neither queries a file server (statx(2), AT_STATX_DONT_SYNC) nor triggers a mount.
func (r *scanner) look(l link) (Number, file, error) {
	r.querying.Store(true)
	defer r.querying.Store(false)
	at, name := l.dirfd, l.name
	if at == unix.AT_FDCWD {
		name = l.path()
	}
	var st unix.Statx_t
	err := unix.Statx(at, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, &st)
	r.steps.Add(1)
	if err != nil {
		return Number{}, file{}, err
	}
	f := file{device{st.Dev_major, st.Dev_minor}, st.Ino}
	kind := st.Mode & unix.S_IFMT
	number := Number{Block: kind == unix.S_IFBLK, Major: st.Rdev_major, Minor: st.Rdev_minor}
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK || !r.wanted[number] {
		number = Number{}
	}
	return number, f, nil
}

// isHarmless is called for a file that cannot be inspected. isHarmless returns true only if the file definitely does not keep a
// device in use. The result comes from procfs and the kernel's own tables, and does not depend on a file system, the SELinux
// policy or a file server.
func (r *scanner) isHarmless(l link) bool {
	if isKernelObject(l) || r.cannotBeNode(l) {
		return true
	}
	// Checking whether a file is a directory needs no permission for the file (open(2), O_PATH).
	fd, err := unix.Open(l.path(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	unix.Close(fd) // does nothing if the open failed
	if !errors.Is(err, unix.ENOTDIR) {
		return err == nil || isGone(err)
	}
	// Only regular files and directories can have user attributes. For other files, the kernel returns ENODATA before it checks
	// permissions or asks the file system (fs/xattr.c, xattr_permission, xattr(7)).
	_, err = unix.Getxattr(l.path(), "user.metalplug", nil)
	return err == nil || isGone(err) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP)
}

// mounts lists a process's mounts (proc_pid_mountinfo(5)). A value is true if an open file on the mount is definitely not a
// device node. This is the case if the mount has the option nodev. A file server's mount is treated as if it had nodev, because
// the server may never answer a query about a file. Only root can mount a file server without nodev.
type mounts struct {
	byID     map[int]bool
	byDevice map[device]bool // true only if the value is true for all mounts of the device
}

// fileServers lists the types of file system that a network server or a user-space program provides. The kernel calls OrangeFS
// pvfs2.
var fileServers = []string{
	"9p", "afs", "autofs", "ceph", "cifs", "coda", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "pvfs2", "smb3", "virtiofs",
}

// cannotBeNode returns true only if a link definitely does not lead to an open device node. cannotBeNode returns true for a
// kernel object, and for a file on a mount that does not allow device nodes. For a mapped file, the device number identifies the
// mount.
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
	return r.mounts.byID[id] || r.mounts.byDevice[l.file.device] // no mount has ID 0 or device 0:0
}

// isKernelObject reports whether a link leads to an object without a path, such as "socket:[7]", "pipe:[7]" or
// "anon_inode:[eventfd]". Such an object is never a device node.
func isKernelObject(l link) bool {
	var start [1]byte
	n, err := unix.Readlink(l.path(), start[:])
	return err == nil && n == 1 && start[0] != '/'
}

// mountID returns the ID of the mount that contains an open file, or 0 if it is unknown. Another process's fdinfo file
// (proc_pid_fdinfo(5)) may be too large to read. This file contains a line for each lock and for each entry of an epoll
// descriptor, and the kernel charges the memory for all lines to the reader. Therefore, mountID opens the same file with O_PATH
// and reads the fdinfo of its own new descriptor, which does not have those lines. Opening a file with O_PATH calls neither a
// driver nor a file server (fs/open.c, do_dentry_open).
func mountID(path string) (id int) {
	fd, _ := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) // if this fails, fd is -1, and the fdinfo file is not found
	defer unix.Close(fd)
	_, id = fdinfo(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	return id
}

// fdinfo returns the flags and the mount ID in an fdinfo file. A value that cannot be read is 0.
func fdinfo(name string) (flags, mount int) {
	text, _ := readFile(name)
	var position int
	_, _ = fmt.Sscanf(string(text), "pos: %d\nflags: %o\nmnt_id: %d\n", &position, &flags, &mount)
	return flags, mount
}

// maxMounts limits the number of mounts that are stored for a process. Each mount takes about 50 bytes. A kubelet's mount
// namespace contains a few thousand mounts.
const maxMounts = 1 << 13

// readMounts reads the mounts of a process. If readMounts cannot read all mounts, or if there are too many, the result is empty,
// because an unread mount could allow device nodes.
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

// parseMount parses a line of the form ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS [TAGS…] - TYPE SOURCE OPTIONS. If the line was
// cut off before the type, parseMount assumes that the mount allows device nodes.
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
