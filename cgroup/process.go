// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is what of a process is of interest for what it holds.
type process struct {
	comm  string
	tasks []string // directories in procfs, one for each table of descriptors; none: it holds nothing
}

const (
	pfKthread = 0x00200000 // PF_KTHREAD of include/linux/sched.h: a thread of the kernel's, without descriptors
	kcmpFiles = 2          // KCMP_FILES of include/uapi/linux/kcmp.h
)

// readProcess reads /proc/PID/stat (proc_pid_stat(5)): PID (COMM) STATE, and behind those the flags as the 9th field and
// the number of threads as the 20th.
func readProcess(proc string, pid int) (process, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, skipGone(err)
	}
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return process{}, fmt.Errorf("read %s/stat: %q", dir, text)
	}
	fields := strings.Fields(string(text[to+1:]))
	if len(fields) < 18 {
		return process{}, fmt.Errorf("read %s/stat: %q", dir, text)
	}
	flags, err := strconv.ParseUint(fields[6], 10, 32)
	threads, threadsErr := strconv.Atoi(fields[17])
	if err := errors.Join(err, threadsErr); err != nil {
		return process{}, fmt.Errorf("read %s/stat: %w", dir, err)
	}
	p := process{comm: string(text[from+1 : to])}
	switch {
	case flags&pfKthread != 0:
	case threads > 1:
		p.tasks, err = tasks(proc, pid)
		err = skipGone(err)
	case fields[0] != "Z": // a zombie; its files are closed
		p.tasks = []string{dir}
	}
	return p, err
}

// tasks returns the directories of one thread for each table of descriptors. Most processes have a single one; but a
// thread may have left it (unshare(2), CLONE_FILES), and the first thread may have ended before the others, after which
// the directory of the process itself shows nothing. Every thread has a directory like that of a process, although
// procfs does not list it (proc_tid(5)).
func tasks(proc string, pid int) ([]string, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	tids, err := list(filepath.Join(dir, "task"))
	if err != nil {
		return nil, err
	}
	found, dirs := []int{pid}, []string{dir}
	for _, tid := range tids {
		if !slices.ContainsFunc(found, func(other int) bool { return shareFiles(tid, other) }) {
			found, dirs = append(found, tid), append(dirs, filepath.Join(proc, strconv.Itoa(tid)))
		}
	}
	return dirs, nil
}

// shareFiles tells whether two threads are known to have the same table of descriptors.
func shareFiles(a, b int) bool {
	if a == b {
		return true
	}
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return errno == 0 && order == 0
}

// list returns the names in a directory that are numbers.
func list(dir string) ([]int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var numbers []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// descriptors adds the devices to held that a task has open. The links in the directory are followed, not read: what
// they say is a path in some mount namespace, or that of a node which is deleted.
func (s *scan) descriptors(task string, held map[Number]bool) error {
	dir := filepath.Join(task, "fd")
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return skipGone(&os.PathError{Op: "open", Path: dir, Err: err})
	}
	defer unix.Close(fd)
	var buf [8 << 10]byte
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf[:])
		if err != nil {
			return skipGone(&os.PathError{Op: "list", Path: dir, Err: err})
		}
		if n == 0 {
			return nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			number, err := s.device(fd, name)
			if err := skipGone(err); err != nil {
				return &os.PathError{Op: "stat", Path: dir + "/" + name, Err: err}
			}
			if s.wanted[number] {
				held[number] = true
			}
		}
	}
}

// mappingRounds is how often the mappings of a process are read that change while they are looked at.
const mappingRounds = 5

// mappings adds the devices to held that a task has mapped.
func (s *scan) mappings(task string, held map[Number]bool) error {
	for range mappingRounds {
		text, err := os.ReadFile(filepath.Join(task, "maps"))
		if err != nil {
			return skipGone(err)
		}
		if err := s.mapped(task, text, held); !isGone(err) {
			return err
		}
	}
	return fmt.Errorf("read %s/maps: it changes all the time", task)
}

// mapped reads the text of /proc/PID/maps. What that says of a file is its path and its inode; of which device that is a
// node, only the links in map_files know (proc_pid_map_files(5)). A file is asked about once in a scan: most are the
// libraries of many processes.
func (s *scan) mapped(task string, text []byte, held map[Number]bool) (err error) {
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		addresses, file := cutMapping(line)
		if file == nil {
			continue
		}
		number, known := s.files[string(file)]
		if !known {
			link := task + "/map_files/" + linkName(addresses)
			if number, err = s.device(unix.AT_FDCWD, link); err != nil {
				return &os.PathError{Op: "stat", Path: link, Err: err}
			}
			s.files[string(file)] = number
		}
		if s.wanted[number] {
			held[number] = true
		}
	}
	return nil
}

// cutMapping returns of a line of /proc/PID/maps (proc_pid_maps(5)), ADDRESSES PERMISSIONS OFFSET DEVICE INODE PATH, the
// addresses, and all behind the offset, which says which file it is. No file is mapped where the inode is 0.
func cutMapping(line []byte) (addresses, file []byte) {
	addresses, rest, _ := bytes.Cut(line, []byte{' '})
	_, rest, _ = bytes.Cut(rest, []byte{' '})
	_, file, _ = bytes.Cut(rest, []byte{' '})
	_, inode, _ := bytes.Cut(file, []byte{' '})
	if len(inode) == 0 || bytes.HasPrefix(inode, []byte("0 ")) {
		return nil, nil
	}
	return addresses, file
}

// linkName returns the name in map_files for addresses in maps, which pads them with zeros (%08lx, there %lx).
func linkName(addresses []byte) string {
	from, to, _ := strings.Cut(string(addresses), "-")
	return trimZeros(from) + "-" + trimZeros(to)
}

func trimZeros(address string) string {
	return cmp.Or(strings.TrimLeft(address, "0"), "0")
}

// device returns the number of what a name in a directory leads to; zero for what is no wanted device. A server of files
// that does not answer is not waited for (statx(2), AT_STATX_DONT_SYNC).
func (s *scan) device(dirfd int, name string) (Number, error) {
	var st unix.Statx_t
	if err := unix.Statx(dirfd, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st); err != nil {
		return Number{}, err
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return Number{}, nil
	}
	number := Number{Block: kind == unix.S_IFBLK, Major: st.Rdev_major, Minor: st.Rdev_minor}
	if !s.wanted[number] {
		return Number{}, nil
	}
	return number, nil
}

// skipGone returns no error for what has ended meanwhile.
func skipGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}
