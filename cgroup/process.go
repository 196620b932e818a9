// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// errThreads is the error for a process of a pod whose threads were not all read.
var errThreads = errors.New("the process starts threads faster than they can be read")

// scanner finds the devices that one process holds, as part of a [scan].
type scanner struct {
	*scan
	pid      int
	podUID   string       // UID of the pod that the process belongs to, or "" while unknown
	careful  bool         // set if files on network file systems must not be inspected
	steps    atomic.Int64 // incremented with each answer from the kernel
	querying atomic.Bool  // set while a query about a file is in progress
	mounts   *mounts      // nil before the first use

	// guarded by scan.mu
	comm     string
	owner    *owner
	finished bool // set when the process was read or abandoned, so that later results are ignored

	// used by [scan.drain]
	lastSteps  int64 // value of the field steps at the last check
	idleChecks int   // number of checks since steps last changed
}

// run finds the devices that the process holds. It returns false if the scan has abandoned the process in the meantime.
func (r *scanner) run() bool {
	held := make(map[Number]bool)
	podUID, err := r.readProcess(held)
	return r.add(r, podUID, held, err)
}

// stalled reports whether a call to the kernel has taken longer than r.patience. It must be called exactly once
// in each check for progress.
func (r *scanner) stalled() bool {
	r.idleChecks++
	if steps := r.steps.Load(); steps != r.lastSteps {
		r.lastSteps, r.idleChecks = steps, 0
	}
	return r.idleChecks > progressChecks
}

// readProcess finds the devices that the scanner's process holds, and adds them to the map "held". If the process has exited,
// nothing is added. If the process was listed as a process of the host but belongs to a pod, it is postponed.
func (r *scanner) readProcess(held map[Number]bool) (podUID string, err error) {
	dir := filepath.Join(r.proc, strconv.Itoa(r.pid))
	p, err := readStatus(dir)
	if isGone(err) || err == nil && p.kernel {
		return podUID, nil
	}
	text, cgroupErr := readFile(dir + "/cgroup")
	if isGone(cgroupErr) {
		return podUID, nil
	}
	podUID = podIn(string(text)) // treated as a process of the host if the text could not be read
	r.steps.Add(1)
	if podUID != "" && r.podUID == "" {
		r.postpone(podUID, err == nil && p.zombie)
		return podUID, nil
	}
	if err == nil && p.zombie {
		return podUID, nil
	}
	if stop := r.admit(r, p.comm, podUID); stop != nil {
		return podUID, stop
	}
	if err == nil {
		err = r.readFiles(dir, p.threads, held)
	}
	return podUID, errors.Join(err, cgroupErr)
}

// readFiles finds the devices that the scanner's process has open or mapped, and adds them to the map "held". Most processes have
// one descriptor table, but a thread may have made its own copy (unshare(2), CLONE_FILES). If the first thread exits before the
// others, the directory of the process shows no descriptors. Each thread has a directory in /proc too, but procfs does not list
// these directories (proc_tid(5)).
//
// A thread may exit before its table is read, and a new thread may have a copy of that table. readFiles therefore lists the
// threads again until all of them were read. It compares each thread with those that were read. In a pod, readFiles reads the
// first thread each time, because a thread that calls execve(2) takes the place of the first thread.
//
// The tables can be sorted, because kcmp(2) defines a total order on them (kernel/kcmp.c, kptr_obfuscate). A process may have so
// many threads that the list exceeds the memory limit of this program. Therefore, readFiles first counts the sorting as work for
// the pod, and reads the list only if the pod is still within maxWork.
func (r *scanner) readFiles(dir string, threads int, held map[Number]bool) (err error) {
	if threads > 1 {
		if err := r.charge(threads * bits.Len(uint(threads))); err != nil {
			return err
		}
	}
	var tids, tables []int // tables has one thread for each descriptor table
	read := make(map[int]bool)
	complete := false
	for round := 0; round < rounds && !complete; round++ {
		if tids, complete, err = r.threads(dir); err != nil {
			return skipGone(err)
		}
		for _, tid := range tids {
			first := tid == r.pid
			if read[tid] && !(first && r.owner.pod) {
				continue
			}
			complete = complete && read[tid]
			at, shared := slices.BinarySearchFunc(tables, tid, r.compareTables)
			if !shared || first {
				if err := r.readDescriptors(filepath.Join(r.proc, strconv.Itoa(tid)), held); err != nil {
					return err
				}
			}
			if !shared && len(tids) > 1 {
				if r.owner.pod && !isRunning(dir, tid) { // the kernel may have shown no descriptors
					read[tid] = first
					continue
				}
				tables = slices.Insert(tables, at, tid)
			}
			read[tid] = true
		}
	}
	// All threads share the same memory. If a thread has exited, its directory no longer shows the memory, even if other threads
	// are still running.
	running := false
	for _, tid := range tids {
		if err := r.readMappings(filepath.Join(r.proc, strconv.Itoa(tid)), held); err != nil {
			return err
		}
		if running = len(tids) == 1 || isRunning(dir, tid); running {
			break
		}
	}
	if r.owner.pod && !(complete && running) {
		if s, err := readStatus(dir); !isGone(err) && !s.zombie { // a process that has ended holds nothing
			return errThreads
		}
	}
	return nil
}

// threads returns the threads of the scanner's process, and whether the list is complete. The kernel ends the list early if a
// thread exits while the kernel lists it (fs/proc/base.c, next_tid).
func (r *scanner) threads(dir string) (tids []int, complete bool, err error) {
	var st unix.Stat_t
	err = unix.Stat(dir+"/task", &st)
	if isGone(err) || st.Nlink == 3 { // 2 plus the number of threads (fs/proc/base.c, proc_task_getattr)
		return []int{r.pid}, true, nil
	}
	tids, err = list(dir+"/task", r.charge)
	if !slices.Contains(tids, r.pid) {
		tids = append(tids, r.pid)
	}
	return tids, len(tids)+2 >= int(st.Nlink), err
}

// isRunning reports whether a thread of a process has not begun to exit. A running thread still has its descriptors and memory.
func isRunning(dir string, tid int) bool {
	s, err := readStatus(filepath.Join(dir, "task", strconv.Itoa(tid)))
	return err == nil && !s.exiting
}

// charge adds work to the total for the processes of a pod. It returns errWork if the total exceeds maxWork.
func (r *scanner) charge(work int) error {
	r.steps.Add(1)
	if r.owner == nil { // the process is the helper itself
		return nil
	}
	if r.owner.work.Add(int64(work)) > maxWork && r.owner.pod {
		return errWork
	}
	return nil
}

// status contains what the scanner must know about a process before it looks for devices that the process holds.
type status struct {
	comm    string
	threads int
	kernel  bool // a kernel thread, which has no files
	exiting bool
	zombie  bool // all threads have exited, and the files are closed
}

const (
	// PF_EXITING and PF_KTHREAD in include/linux/sched.h mark a thread that exits, and a kernel thread.
	pfExiting = 0x00000004
	pfKthread = 0x00200000
	kcmpFiles = 2 // KCMP_FILES in include/uapi/linux/kcmp.h
)

// readStatus reads /proc/PID/stat (proc_pid_stat(5)). The file begins with PID (COMM) STATE. Field 9 contains the flags,
// and field 20 contains the number of threads.
func readStatus(dir string) (status, error) {
	text, err := readFile(dir + "/stat")
	if err != nil {
		return status{}, err
	}
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return status{}, fmt.Errorf("read %s/stat: %q", dir, text)
	}
	fields := strings.Fields(string(text[to+1:]))
	if len(fields) < 18 {
		return status{}, fmt.Errorf("read %s/stat: %q", dir, text)
	}
	flags, err := strconv.ParseUint(fields[6], 10, 32)
	threads, threadsErr := strconv.Atoi(fields[17])
	if err := errors.Join(err, threadsErr); err != nil {
		return status{}, fmt.Errorf("read %s/stat: %w", dir, err)
	}
	return status{
		comm: string(text[from+1 : to]), threads: threads,
		kernel: flags&pfKthread != 0, exiting: flags&pfExiting != 0, zombie: threads <= 1 && fields[0] == "Z",
	}, nil
}

// compareTables compares threads by their descriptor tables. Two tables that cannot be compared are treated as different, for
// example if one of the threads has exited.
func (r *scanner) compareTables(a, b int) int {
	r.steps.Add(1)
	if a == b {
		return 0
	}
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	if errno != 0 || order > 2 {
		return a - b
	}
	return [...]int{0, -1, 1}[order]
}

// list returns the numeric names in a directory. While list reads the directory, it passes the number of names to the function
// "charge".
func list(dir string, charge func(int) error) (numbers []int, err error) {
	fd, err := openFile(dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	err = eachName(fd, dir, func(names []string) error {
		for _, name := range names {
			if n, err := strconv.Atoi(name); err == nil {
				numbers = append(numbers, n)
			}
		}
		return charge(len(names))
	})
	return numbers, err
}

// eachName calls f with the names in an open directory, a few at a time. A list of all names could be too large, because the
// inspected process determines how many names there are.
func eachName(fd descriptor, dir string, f func(names []string) error) error {
	var buf [8 << 10]byte
	var names []string
	for {
		n, err := unix.ReadDirent(int(fd), buf[:])
		if err != nil {
			return &os.PathError{Op: "list", Path: dir, Err: err}
		}
		if n == 0 {
			return nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		if err := f(names); err != nil {
			return err
		}
	}
}

func uncharged(int) error { return nil }

// descriptor is the descriptor of an open file or directory in procfs. An os.File would need twice as many system calls, mostly
// for the poller.
type descriptor int

// openFile opens a file or directory in procfs for reading.
func openFile(name string, flags int) (descriptor, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return descriptor(fd), nil
}

// Read implements io.Reader.
func (d descriptor) Read(p []byte) (n int, err error) {
	n, err = unix.Read(int(d), p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

// Close closes the descriptor. It returns no error, because nothing was written to the file.
func (d descriptor) Close() { unix.Close(int(d)) }

// maxRead is the maximum size of a file that [readFile] reads. The longest of these files is /proc/PID/status, which takes up to
// 700 kB for a process with 65,536 groups (NGROUPS_MAX).
const maxRead = 1 << 20

// readFile returns the text of a procfs file. It returns an error if the text is longer than maxRead.
func readFile(name string) (text []byte, err error) {
	file, err := openFile(name, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if text, err = io.ReadAll(io.LimitReader(file, maxRead)); len(text) == maxRead {
		err = fmt.Errorf("read %s: %w", name, unix.EFBIG)
	}
	return text, err
}
