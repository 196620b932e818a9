// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// errThreads is the error for a pod's process if some of its threads could not be read.
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
	end      time.Time    // result of [scan.timeLimit]

	// guarded by scan.mu
	comm     string
	owner    *owner
	finished bool // set when the process was read or abandoned, so that later results are ignored

	// used by [scan.drain]
	lastSteps  int64 // value of steps at the last check
	idleChecks int   // number of checks since steps last changed
}

// isStalled reports whether a call to the kernel has taken longer than r.patience. isStalled must be called exactly once in each
// progress check.
func (r *scanner) isStalled() bool {
	r.idleChecks++
	if steps := r.steps.Load(); steps != r.lastSteps {
		r.lastSteps, r.idleChecks = steps, 0
	}
	return r.idleChecks > progressChecks
}

// readProcess finds the devices that the scanner's process holds, and adds them to the map "held". If the process has exited,
// nothing is added. If the process was listed as a host process but belongs to a pod, readProcess postpones it.
func (r *scanner) readProcess(held map[Number]bool) (podUID string, err error) {
	dir := filepath.Join(r.proc, strconv.Itoa(r.pid))
	p, err := readStatus(dir)
	if isGone(err) || p.flags&pfKthread != 0 {
		return podUID, nil
	}
	podUID, cgroupErr := r.readPod(dir)
	if isGone(cgroupErr) {
		return podUID, nil
	}
	if podUID != "" && r.podUID == "" {
		r.postpone(podUID, p.isZombie())
		return podUID, nil
	}
	if p.isZombie() {
		return podUID, nil
	}
	if stop := r.assignOwner(r, p.comm, podUID); stop != nil {
		return podUID, stop
	}
	if err == nil {
		err = r.readFiles(dir, held)
	}
	return podUID, errors.Join(err, cgroupErr)
}

// readPod returns the UID of the pod that the scanner's process belongs to. readPod returns "" for a host process, or if the
// cgroup cannot be read. In cgroup v1, the kernel shows "/" for an exiting thread (kernel/cgroup/cgroup.c, proc_cgroup_show). In
// this case, readPod reads the cgroup of a running thread. If each new thread that it finds is exiting too, the process counts as
// unread.
func (r *scanner) readPod(dir string) (podUID string, err error) {
	text, err := readFile(dir + "/cgroup")
	lines, roots := bytes.Count(text, []byte("\n")), bytes.Count(text, []byte(":/\n"))
	if podUID = podIn(string(text)); podUID != "" || roots == 0 || roots < lines-1 { // the version 2 line may show another path
		return podUID, err
	}
	read := make(map[int]bool)
	for range passes {
		tids, complete, err := r.threads(dir)
		for _, tid := range slices.Backward(tids) { // the newest thread comes first
			if read[tid] {
				continue
			}
			text, _ := readFile(filepath.Join(dir, "task", strconv.Itoa(tid), "cgroup"))
			if podUID = podIn(string(text)); podUID != "" || readThread(dir, tid).running() {
				return podUID, nil
			}
			read[tid], complete = true, false
		}
		if complete || err != nil {
			return r.podUID, err
		}
	}
	return r.podUID, errThreads
}

// readFiles finds the devices that the scanner's process has open or mapped, and adds them to the map "held". A running process
// may move a descriptor or a mapping to a number or address that was already read, or pass it to a new thread. readFiles
// therefore rereads a pod's process until the process has not run during a pass. The pauses between the passes are random, so
// that the process cannot predict them. A process without a time limit is read once. readFiles also rereads a process if its list
// of threads is incomplete.
func (r *scanner) readFiles(dir string, held map[Number]bool) error {
	read, fresh := make(map[int]bool), true
	for range passes {
		start, used := time.Now(), r.cpuTime()
		tids, complete, err := r.threads(dir)
		if err == nil {
			err = r.readThreads(dir, tids, held)
		}
		if err != nil {
			return skipGone(err)
		}
		// The kernel updates a process's CPU time only at a timer tick or when a thread leaves the CPU (kernel/sched/cputime.c,
		// thread_group_cputime).
		busy := func(tid int) bool { return r.countAnswer() != nil || readThread(dir, tid).state == "R" }
		if complete && (r.end.IsZero() || !slices.ContainsFunc(tids, busy) && r.cpuTime() == used) {
			return nil
		}
		fresh = !complete
		for _, tid := range tids {
			fresh, read[tid] = fresh || !read[tid], true
		}
		pause := unix.NsecToTimespec(int64(rand.N(max(1, min(time.Since(start), maxPause)))))
		_ = unix.Nanosleep(&pause, nil) // time.Sleep would wake up only at whole milliseconds
	}
	if s, err := readStatus(dir); fresh && r.owner.pod && !isGone(err) && !s.isZombie() { // a process that has ended holds nothing
		return errThreads
	}
	return nil
}

// readThreads reads the threads' descriptor tables and the process's memory. Most processes have one table, but a thread may have
// made its own copy (unshare(2), CLONE_FILES). If the first thread exits before the others, the process's directory shows no
// descriptors. Each thread also has its own directory in /proc, which procfs does not list (proc_tid(5)). All threads share the
// same memory. If a thread has exited, its directory shows no memory. A zombie has no descriptors, even if a tracer keeps it,
// because a thread closes its files before it becomes a zombie (kernel/exit.c, do_exit).
//
// The tables can be sorted, because kcmp(2) defines a total order on them (kernel/kcmp.c, kptr_obfuscate).
func (r *scanner) readThreads(dir string, tids []int, held map[Number]bool) error {
	var tables []int // one thread for each table
	running := false
	for _, tid := range tids {
		task := filepath.Join(r.proc, strconv.Itoa(tid))
		if at, shared := slices.BinarySearchFunc(tables, tid, r.compareTables); !shared {
			tables = slices.Insert(tables, at, tid)
			if err := r.readDescriptors(task, held); err != nil {
				return err
			}
		}
		if !running {
			if err := r.readMappings(task, held); err != nil {
				return err
			}
			running = len(tids) == 1 || readThread(dir, tid).running()
		}
	}
	return nil
}

// threads returns the threads of the scanner's process, and whether the list is complete. The kernel ends the list early if a
// thread exits while it is being listed (fs/proc/base.c, next_tid).
func (r *scanner) threads(dir string) (tids []int, complete bool, err error) {
	var st unix.Stat_t
	err = unix.Stat(dir+"/task", &st)
	if isGone(err) || st.Nlink == 3 { // 2 plus the number of threads (fs/proc/base.c, proc_task_getattr)
		return []int{r.pid}, true, nil
	}
	tids, err = list(dir+"/task", maxThreads)
	return tids, len(tids)+2 >= int(st.Nlink), err
}

// cpuTime returns the CPU time of the scanner's process. If the process has exited, the CPU time is zero. The manual page
// clock_getcpuclockid(3) describes the clocks of other processes.
func (r *scanner) cpuTime() int64 {
	var used unix.Timespec
	_ = unix.ClockGettime(int32(^r.pid<<3|2), &used) // CPUCLOCK_SCHED in include/linux/posix-timers.h
	return used.Nano()
}

// countAnswer counts an answer from the kernel, and returns errTime if the time limit is exceeded.
func (r *scanner) countAnswer() error {
	r.steps.Add(1)
	if !r.end.IsZero() && r.now().After(r.end) {
		return errTime
	}
	return nil
}

// status contains what the scanner needs to know about a process or thread.
type status struct {
	comm, state      string
	threads, session int
	flags            uint64
}

// isZombie reports whether all threads have exited and the files are closed.
func (s status) isZombie() bool { return s.threads <= 1 && s.state == "Z" }

// running reports whether a thread has not yet begun to exit. A running thread still has its descriptors and memory.
func (s status) running() bool { return s.state != "" && s.flags&pfExiting == 0 }

// readThread reads the status of a thread. If the thread no longer exists, the status is zero.
func readThread(dir string, tid int) status {
	s, _ := readStatus(filepath.Join(dir, "task", strconv.Itoa(tid)))
	return s
}

const (
	// These flags in include/linux/sched.h mark an exiting thread, one that has not called execve(2), and a kernel thread.
	pfExiting    = 0x00000004
	pfForkNoExec = 0x00000040
	pfKthread    = 0x00200000
	kcmpFiles    = 2 // KCMP_FILES in include/uapi/linux/kcmp.h
)

// readStatus reads /proc/PID/stat (proc_pid_stat(5)). The file begins with PID (COMM) STATE. Field 6 contains the session, field 9
// the flags, and field 20 the number of threads.
func readStatus(dir string) (status, error) {
	text, err := readFile(dir + "/stat")
	if err != nil {
		return status{}, err
	}
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[to+1:]))
	if from < 0 || to < from || len(fields) < 18 {
		return status{}, fmt.Errorf("read %s/stat: %q", dir, text)
	}
	session, err := strconv.Atoi(fields[3])
	flags, flagsErr := strconv.ParseUint(fields[6], 10, 32)
	threads, threadsErr := strconv.Atoi(fields[17])
	if err := errors.Join(err, flagsErr, threadsErr); err != nil {
		return status{}, fmt.Errorf("read %s/stat: %w", dir, err)
	}
	return status{string(text[from+1 : to]), fields[0], threads, session, flags}, nil
}

// compareTables compares threads by their descriptor tables. Tables that cannot be compared, for example because one of the
// threads has exited, count as different.
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

// list returns the numeric names in a directory. If there are more than the given number of names, list returns an error, so that
// the list does not use too much memory.
func list(dir string, most int) (numbers []int, err error) {
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
		if len(numbers) > most {
			return fmt.Errorf("list %s: %w: more than %d names", dir, ErrIncomplete, most)
		}
		return nil
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

// descriptor is the descriptor of an open file or directory in procfs. An os.File would need twice as many system calls,
// because it registers with the poller.
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

// Close closes the descriptor. Close returns no error, because nothing was written to the file.
func (d descriptor) Close() { unix.Close(int(d)) }

// maxRead is the maximum size of a file that [readFile] reads. The longest of these files is /proc/PID/status, which takes up to
// 700 kB for a process with 65,536 groups (NGROUPS_MAX).
const maxRead = 1 << 20

// readFile returns the contents of a procfs file, or an error if they are longer than maxRead.
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
