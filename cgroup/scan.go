// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// rounds is the maximum number of times that processes are listed. Each further round finds processes that were started
	// during the previous round and inherited descriptors. A limit is necessary, because some nodes start processes all the time.
	// A process's files are read at most "passes" times.
	rounds, passes = 16, 32
	// scanners is the number of processes that are read concurrently. While some readers are stuck in the kernel, up to
	// maxScanners readers may run.
	scanners, maxScanners = 4, 32
	// maxStuck limits the number of threads that wait in the kernel for information about a process. At most maxStuckPods of them
	// may wait for pod processes, so that the rest remain available for host processes. One pod can block only one thread. By
	// default, the kubelet runs up to 110 pods. TasksMax= in metalplug-holders@.service allows all these threads.
	maxStuck, maxStuckPods = 256, 224
	// share is the time limit for reading one pod's processes. Most pods need a few milliseconds. If a pod needs more time, its
	// remaining processes wait for the next round, and the limit doubles in each round. Once the pods together have taken
	// maxTime, the limit goes back to share, so that other pods are still read. The limits apply to elapsed time and not to CPU
	// time, because a scan spends much of its time in the pauses between passes.
	share, maxTime = 100 * time.Millisecond, 1500 * time.Millisecond
	// maxProcesses limits the number of processes in the list. The list takes about 110 bytes for each process. maxThreads limits
	// the list of a process's threads. With the default value of vm.max_map_count, a process cannot have more than 32,765
	// threads.
	maxProcesses, maxThreads = 1 << 18, 1 << 16
	// maxFiles limits the number of mapped files whose device numbers are stored. Each file takes about 40 bytes.
	maxFiles = 1 << 17
	// maxSample limits how many of a pod's processes are checked for privileges. maxStatus limits how many bytes are read for
	// this, because the kernel takes 20 ms to format the 65,536 groups that a process may have. Once either limit is reached, no
	// further process is read.
	maxSample, maxStatus = 1 << 10, 1 << 18
	// patience is the maximum time that a system call about a process may take. progressChecks is the number of checks
	// for progress in that time.
	patience, progressChecks = time.Second, 4
	// maxPause limits the time between two passes. maxPause is less than patience.
	maxPause = 100 * time.Millisecond
)

// initPIDNamespace is the host's PID namespace (PID_NS_INIT_INO in include/uapi/linux/nsfs.h, 0xEFFFFFFC).
const initPIDNamespace = "pid:[4026531836]"

var (
	errStuck = errors.New("the kernel does not answer; the process may be stuck with its memory locked")
	errForks = errors.New("the pod starts processes faster than they can be read")
	errTime  = errors.New("the processes of the pod take too long to read")
)

// clock is replaced by tests.
var clock = time.Now

// scan is a single search through all processes.
type scan struct {
	proc     string
	wanted   map[Number]bool
	asker    int
	patience time.Duration
	memory   device // device number of the kernel's internal tmpfs, or zero if unknown
	now      func() time.Time

	seen     map[int]bool
	number   int       // number of the round, from 0
	deadline time.Time // end of maxTime
	// forks is set if new processes appeared in all rounds. In this case, the scan reports a pod as unread if the pod has started
	// processes since the first round. Such a process may have passed a descriptor to another process, and may have exited before
	// the scan inspected it. The scan does not report the host as unread for this reason, because host processes start and exit
	// all the time on some nodes.
	forks bool

	mu      sync.Mutex
	owners  map[string]*owner // keys are pod UIDs, and "" for the host
	mapped  map[file]Number   // the number is zero for files that are not nodes of a wanted device
	holders []Holder
	pods    map[string][]int // processes of each pod to read next
	stuck   int              // threads that wait in the kernel
	// remote is set if a query about a file got no answer. After that, files on network file systems are not inspected.
	remote bool
}

// work is a group of processes that are read one after another. work contains one host process, or all of a pod's processes, so
// that a pod with stuck processes blocks only one thread.
type work struct {
	podUID string
	pids   []int
}

// owner collects facts about all processes in a pod or on the host.
type owner struct {
	pod    bool
	pids   []int         // the first maxSample processes of a pod
	spent  time.Duration // time that the scan has taken for the processes
	err    error         // why the scan does not read the remaining processes, or nil
	late   bool          // set if a process was started after the first round
	unread int
	cause  string

	checked    sync.Once
	privileged atomic.Bool // set by [scan.check]
}

func newScan(proc string, numbers []Number, asker int) *scan {
	s := &scan{
		proc: proc, wanted: make(map[Number]bool, len(numbers)), asker: asker, patience: patience, memory: kernelTmpfs(), now: clock,
		seen: make(map[int]bool), owners: map[string]*owner{"": {}}, pods: make(map[string][]int), mapped: make(map[file]Number),
	}
	for _, n := range numbers {
		s.wanted[n] = true
	}
	return s
}

func (s *scan) run() error {
	space, err := os.Readlink(filepath.Join(s.proc, "self/ns/pid"))
	if err != nil {
		return err
	}
	if space != initPIDNamespace {
		return fmt.Errorf("%w: %s does not belong to the host's PID namespace", ErrIncomplete, s.proc)
	}
	for round := range rounds {
		found, err := s.readRound(round)
		if err != nil || found == 0 && len(s.pods) == 0 {
			return err
		}
	}
	s.forks = true
	return nil
}

// readRound reads the processes that were not listed in an earlier round, and returns their number. readRound reads the host
// processes first, so that only pods can exceed the limit on stuck threads. It then reads the pods, including those that took too
// long in the previous round.
func (s *scan) readRound(n int) (found int, err error) {
	pids, err := list(s.proc, maxProcesses)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(pids, 1) { // the mount option hidepid (proc(5)) hides processes without an error
		return 0, fmt.Errorf("%w: %s hides the processes of other users: CAP_SYS_PTRACE is required", ErrIncomplete, s.proc)
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool { return s.seen[pid] || pid == s.asker })
	slices.Sort(pids)
	all := make([]work, len(pids))
	for i, pid := range pids {
		s.seen[pid] = true
		all[i] = work{pids: pids[i : i+1]}
	}
	s.number = n
	s.drain(all)
	s.deadline = cmp.Or(s.deadline, s.now().Add(maxTime))
	var pods []work
	for podUID, pids := range s.pods {
		pods = append(pods, work{podUID, pids})
	}
	clear(s.pods)
	s.drain(pods)
	return len(pids), nil
}

// reader is a goroutine that reads processes one after another.
type reader struct {
	*scan

	// guarded by scan.mu
	current *scanner // scanner of the current process, or nil before the first process
	rest    work     // processes taken from the queue but not read yet
}

// drain reads the processes in a queue, several at a time. If the kernel does not answer a reader in time (see patience), drain
// abandons the reader and its process. drain starts two new readers in place of the abandoned one, because the processes of many
// pods may be stuck.
func (s *scan) drain(queue []work) {
	next := make(chan work, len(queue))
	for _, w := range queue {
		next <- w
	}
	close(next)
	ended := make(chan *reader, maxScanners)
	readers := make(map[*reader]bool)
	begin := func(rest work) {
		r := &reader{scan: s, rest: rest}
		readers[r] = true
		go r.run(next, ended)
	}
	for range min(scanners, len(queue)) {
		begin(work{})
	}
	ticker := time.NewTicker(s.patience / progressChecks)
	defer ticker.Stop()
	for len(readers) > 0 {
		select {
		case r := <-ended:
			delete(readers, r)
		case <-ticker.C:
			for r := range maps.Clone(readers) {
				if rest, stuck := r.giveUp(); stuck {
					delete(readers, r)
					begin(rest)
					if len(readers) < maxScanners {
						begin(work{})
					}
				}
			}
		}
	}
}

// run reads the processes in r.rest. After that, run reads processes from the queue until the queue is empty. If drain abandons
// the reader, run returns without sending a message on the channel ended.
func (r *reader) run(queue <-chan work, ended chan<- *reader) {
	for w, more := r.rest, true; more; w, more = <-queue {
		for ; len(w.pids) > 0; w = r.rest {
			r.mu.Lock()
			o, begin := r.owners[w.podUID], r.now()
			process, sample := &scanner{scan: r.scan, pid: w.pids[0], podUID: w.podUID, owner: o, careful: r.remote, end: r.timeLimit(o)}, o.pids
			r.current, r.rest = process, work{w.podUID, w.pids[1:]}
			r.mu.Unlock()
			held := make(map[Number]bool)
			podUID, err := process.readProcess(held)
			if !r.add(process, podUID, held, err, begin, errors.Is(err, errTime) && r.check(o, sample)) {
				return
			}
		}
	}
	ended <- r
}

// timeLimit returns when a reader must stop reading an owner's process. The result is zero, which means never, for the host and
// for a privileged pod. The caller must hold the lock.
func (s *scan) timeLimit(o *owner) time.Time {
	if !o.pod || o.privileged.Load() {
		return time.Time{}
	}
	return s.now().Add(max(share, min(share<<s.number, o.spent+s.deadline.Sub(s.now()))) - o.spent)
}

// giveUp abandons the current process if the kernel has not answered the reader in time (see patience). If giveUp has done so,
// the result "stuck" is true. The result "rest" contains the processes that the reader has not read yet. giveUp marks the current
// process as unread, and the scan then skips all other processes of the same pod. If a file on a network file system may be the
// cause, giveUp instead makes the process the first in rest. The scan then reads the process again, but without such files.
func (r *reader) giveUp() (rest work, stuck bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.current
	if p == nil || p.finished || !p.isStalled() {
		return work{}, false
	}
	p.finished = true
	r.stuck++ // incremented before the new readers start, so that they respect the limit
	if p.querying.Load() && !p.careful {
		r.remote = true
		return work{p.podUID, slices.Concat([]int{p.pid}, r.rest.pids)}, true
	}
	r.markUnread(p.owner, p.pid, p.comm, errStuck)
	return r.rest, true
}

// postpone queues the scanner's process for its pod. The scan reads postponed processes after the host processes. postpone does
// not queue a zombie, because a zombie has no open files. A late zombie still makes its pod late, because it may have passed its
// files to another process.
func (r *scanner) postpone(podUID string, zombie bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished {
		return
	}
	o := r.ownerOf(podUID, r.pid)
	o.late = o.late || r.number > 0
	if zombie {
		return
	}
	r.pods[podUID] = append(r.pods[podUID], r.pid)
}

// assignOwner records which owner the scanner's process belongs to. The owner may have changed since the process was listed.
// assignOwner returns an error if the scan should read no more processes of that owner.
func (s *scan) assignOwner(r *scanner, comm, podUID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.finished {
		return errStuck
	}
	r.comm = comm
	if podUID != r.podUID { // for example, if a runtime has started the process for a container
		r.owner = s.ownerOf(podUID, r.pid)
		r.end = s.timeLimit(r.owner)
	}
	if s.stuck >= maxStuck || r.owner.pod && s.stuck >= maxStuckPods {
		return errStuck
	}
	return r.owner.err
}

// ownerOf returns the owner of a process. While a process is being read, the caller must hold the lock.
func (s *scan) ownerOf(podUID string, pid int) *owner {
	o := s.owners[podUID]
	if o == nil {
		o = &owner{pod: podUID != ""}
		s.owners[podUID] = o
	}
	if o.pod && len(o.pids) < maxSample {
		o.pids = append(o.pids, pid)
	}
	return o
}

// add adds the devices that a scanner has found to the answer. If the time limit was exceeded, and the pod gets more time, add
// queues the process and those in rest for the next round. add returns false if the process was abandoned.
func (r *reader) add(p *scanner, podUID string, held map[Number]bool, err error, begin time.Time, privileged bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.finished { // the pod is already marked as unread
		return false
	}
	p.finished = true
	p.owner.spent += r.now().Sub(begin)
	for n := range held {
		r.holders = append(r.holders, Holder{PID: p.pid, Comm: p.comm, Number: n, PodUID: podUID})
	}
	switch {
	case errors.Is(err, errTime) && r.number < rounds-1 && (privileged || r.now().Before(r.deadline)):
		r.pods[p.podUID] = append(append(r.pods[p.podUID], p.pid), r.rest.pids...)
		r.rest.pids = nil
	case err != nil:
		r.markUnread(p.owner, p.pid, p.comm, err)
	}
	if p.owner.err != nil && podUID == p.podUID {
		p.owner.unread += len(r.rest.pids)
		r.rest.pids = nil
	}
	return true
}

// markUnread marks a process as unread. If the process is stuck or the time limit is exceeded, the scan skips all other processes
// of the same pod. The caller must hold the lock.
func (s *scan) markUnread(o *owner, pid int, comm string, err error) {
	if o.unread == 0 {
		o.cause = fmt.Sprintf("process %d (%q): %v", pid, comm, err)
	}
	o.unread++
	if o.pod && (errors.Is(err, errStuck) || errors.Is(err, errTime)) {
		o.err = err
	}
}

// answer returns the scan's result.
func (s *scan) answer() Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := Answer{Holders: s.holders}
	for podUID, o := range s.owners {
		if s.forks && o.pod && o.late {
			o.unread, o.cause = o.unread+1, cmp.Or(o.cause, errForks.Error())
		}
		if o.unread > 0 {
			a.Unread = append(a.Unread, Unread{podUID, !o.pod || s.check(o, o.pids), o.unread, o.cause})
		}
	}
	slices.SortFunc(a.Holders, func(h, o Holder) int {
		return cmp.Or(cmp.Compare(h.PID, o.PID), strings.Compare(h.Number.String(), o.Number.String()))
	})
	a.Holders = slices.Compact(a.Holders) // a process that was read again may be listed twice
	slices.SortFunc(a.Unread, func(u, v Unread) int { return strings.Compare(u.PodUID, v.PodUID) })
	return a
}

// initUserNamespace is the host's user namespace (USER_NS_INIT_INO in include/uapi/linux/nsfs.h, 0xEFFFFFFD).
const initUserNamespace = "user:[4026531837]"

// check reports whether a pod is privileged. check inspects each pod's processes only once. If these processes have too many
// groups, check returns false, because it must not treat an unprivileged pod as privileged.
func (s *scan) check(o *owner, pids []int) bool {
	o.checked.Do(func() {
		size := 0
		o.privileged.Store(slices.ContainsFunc(slices.Sorted(slices.Values(pids)), func(pid int) bool { return size < maxStatus && s.isPrivileged(pid, &size) }))
	})
	return o.privileged.Load()
}

// isPrivileged reports whether a process could have CAP_SYS_ADMIN on the host, as in a privileged pod, which can access all
// devices. No other cheap test shows which devices a pod may open. In version 2, the device controller is a BPF program, which
// only a process with CAP_BPF may inspect. A process in its own user namespace has all capabilities, but none of them applies to
// devices. In the host's user namespace, the bounding set can only shrink (capabilities(7)). If the process has exited,
// isPrivileged returns false, because other processes of the pod can be checked. isPrivileged adds the number of bytes that it
// has read to size.
func (s *scan) isPrivileged(pid int, size *int) bool {
	dir := filepath.Join(s.proc, strconv.Itoa(pid))
	space, err := os.Readlink(filepath.Join(dir, "ns/user"))
	if err != nil {
		return !isGone(err)
	}
	// isRunc comes before the bounding set, because runc reduces the set before it executes a container's program.
	if space != initUserNamespace || s.isRunc(pid, dir) {
		return false
	}
	text, err := readFile(dir + "/status")
	if err != nil {
		return !isGone(err)
	}
	*size += len(text)
	_, after, _ := strings.Cut(string(text), "\nCapBnd:\t")
	digits, _, _ := strings.Cut(after, "\n")
	bounding, err := strconv.ParseUint(digits, 16, 64)
	return err != nil || bounding&(1<<unix.CAP_SYS_ADMIN) != 0
}

// isRunc reports whether a pod's process is "runc init". The process "runc init" has all capabilities until it executes the
// container's program. Until then, the pod's CPU quota may stop this process. In runc 1.3, the first process is in the pod's
// cgroup, but in the host's mount namespace, and it is not a session leader. The first process starts the other two, which do not
// call execve(2) before the container's program starts (libcontainer/nsenter/nsexec.c). A container's program runs in the
// container's mount namespace. The program's process is a session leader, even if nsenter(1) has moved it to the host's mount
// namespace. If the kernel does not answer, isRunc returns false.
func (s *scan) isRunc(pid int, dir string) bool {
	p, err := readStatus(dir)
	if err != nil || p.flags&pfForkNoExec != 0 {
		return err == nil
	}
	host, hostErr := os.Readlink(filepath.Join(s.proc, "1/ns/mnt"))
	own, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
	return hostErr == nil && err == nil && own == host && p.session != pid
}

// isGone reports whether an error means that a process or one of its descriptors no longer exists.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

// skipGone returns nil if isGone(err) is true, and err otherwise.
func skipGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}
