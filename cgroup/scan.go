// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"errors"
	"fmt"
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
	// rounds is how often processes are listed at most. Once more finds those that were started in between and have inherited
	// descriptors. Processes are always starting somewhere, so there must be an end.
	rounds = 8
	// scanners is how many processes are read at once, and maxScanners how many beside those that are stuck in the kernel.
	scanners, maxScanners = 4, 32
	// maxStuck bounds the threads that wait in the kernel for an answer about some process, of which one pod keeps one, and
	// maxStuckPods those for pods. The rest is for processes of the host. The kubelet runs 110 pods by default. TasksMax= in
	// metalplug-holders@.service leaves room for all threads.
	maxStuck, maxStuckPods = 256, 224
	// maxWork bounds what is read of the processes of one pod, in descriptors, mapped files and comparisons of threads. It is
	// some ten times what a large pod has, and done in a second or two.
	maxWork = 1 << 19
	// maxFiles bounds the mapped files that are remembered, at some 40 bytes each.
	maxFiles = 1 << 17
	// maxSample bounds how many processes of a pod are asked whether the pod is privileged.
	maxSample = 1 << 10
	// patience is how long one system call about a process may take, and looks how often is looked in that time whether it is over.
	patience, looks = time.Second, 4
)

// initPIDNamespace is the host's PID namespace (PID_NS_INIT_INO of include/uapi/linux/nsfs.h, 0xEFFFFFFC).
const initPIDNamespace = "pid:[4026531836]"

var (
	errStuck = errors.New("the kernel does not answer about it, as of a process that is stuck with its memory locked")
	errForks = errors.New("the pod starts processes faster than they can be looked at")
	errWork  = errors.New("the pod has too many descriptors, mappings and threads to look at")
)

// scan is one look at all processes.
type scan struct {
	proc     string
	wanted   map[Number]bool
	asker    int
	patience time.Duration
	memory   device // of the kernel's own tmpfs, or zero if it is not known

	seen map[int]bool

	mu      sync.Mutex
	owners  map[string]*owner // by pod UID, with "" for the host
	mapped  map[file]Number   // files, with zero for one that is not a wanted device
	holders []Holder
	stuck   int  // threads that wait in the kernel
	remote  bool // a file kept the kernel from answering, so that files of network file systems are not looked at any more
}

// work is processes that are read one after the other. It is one of the host, or all those of a pod, so that a pod whose
// processes are stuck keeps one thread.
type work struct {
	podUID string
	pids   []int
}

// owner is what is known of the processes of a pod, or of the host.
type owner struct {
	pod    bool
	pids   []int // the first ones of a pod
	work   atomic.Int64
	err    error // why no further process is read, or nil
	late   bool  // a process was started after the first round
	unread int
	cause  string
}

func newScan(proc string, numbers []Number, asker int) *scan {
	s := &scan{
		proc: proc, wanted: make(map[Number]bool, len(numbers)), asker: asker, patience: patience, memory: ownMemory(),
		seen: make(map[int]bool), owners: make(map[string]*owner), mapped: make(map[file]Number),
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
		return fmt.Errorf("%w: %s is not that of the host's PID namespace", ErrIncomplete, s.proc)
	}
	for round := range rounds {
		found, err := s.round(round)
		if err != nil || found == 0 {
			return err
		}
	}
	s.unsettled()
	return nil
}

// round reads the processes that it has not seen before and returns how many those were.
func (s *scan) round(n int) (found int, err error) {
	pids, err := list(s.proc, uncharged)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(pids, 1) { // hidepid of proc(5) hides processes without a word
		return 0, fmt.Errorf("%w: %s hides those of others: CAP_SYS_PTRACE is needed", ErrIncomplete, s.proc)
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool { return s.seen[pid] || pid == s.asker })
	slices.Sort(pids)
	s.drain(s.divide(pids, n > 0))
	return len(pids), nil
}

// unsettled counts the pods as unread in which processes have started all the time. One that has ended before it was read may
// have left its descriptors to another. Processes of the host come and go all the time on some nodes and are not counted.
func (s *scan) unsettled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.owners {
		if o.pod && o.late {
			o.unread++
			o.cause = cmp.Or(o.cause, errForks.Error())
		}
	}
}

// divide makes the queue of a round. The processes of the host come first, so that pods alone meet the limit of stuck threads.
func (s *scan) divide(pids []int, late bool) []work {
	var host, pods []work
	at := make(map[string]int) // in pods
	for _, pid := range pids {
		s.seen[pid] = true
		// An error counts when the process is read.
		text, _ := os.ReadFile(filepath.Join(s.proc, strconv.Itoa(pid), "cgroup"))
		podUID := podIn(string(text))
		if o := s.ownerOf(podUID, pid); late {
			o.late = true
		}
		if podUID == "" {
			host = append(host, work{pids: []int{pid}})
			continue
		}
		i, known := at[podUID]
		if !known {
			i = len(pods)
			at[podUID] = i
			pods = append(pods, work{podUID: podUID})
		}
		pods[i].pids = append(pods[i].pids, pid)
	}
	return append(host, pods...)
}

// drain reads the processes in a queue, some at once. For each one that is stuck in the kernel two others begin, as many pods
// may be stuck.
func (s *scan) drain(queue []work) {
	permits := make(chan struct{}, maxScanners)
	for range scanners {
		permits <- struct{}{}
	}
	var more atomic.Int64
	more.Store(maxScanners - scanners)
	var all sync.WaitGroup
	for _, w := range queue {
		<-permits
		all.Go(func() {
			pass := sync.OnceFunc(func() { permits <- struct{}{} })
			defer pass()
			stuck := func() {
				pass()
				if more.Add(-1) >= 0 {
					permits <- struct{}{}
				}
			}
			for _, pid := range w.pids {
				for s.read(pid, w.podUID, stuck) {
				}
			}
		})
	}
	all.Wait()
}

// read reads a process. After the time of patience without an answer of the kernel it gives the process up, with the thread
// that waits, calls stuck, and no other process of the pod is read. If that may be because of a file of a network file system,
// it returns true, and the process is to be read again, without such files.
func (s *scan) read(pid int, podUID string, stuck func()) (again bool) {
	s.mu.Lock()
	r := &scanner{scan: s, pid: pid, podUID: podUID, owner: s.owners[podUID], careful: s.remote}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		r.run()
		close(done)
	}()
	ticker := time.NewTicker(s.patience / looks)
	defer ticker.Stop()
	for last, still := int64(0), 0; still < looks; still++ {
		select {
		case <-done:
			return false
		case <-ticker.C:
		}
		if now := r.steps.Load(); now != last {
			last, still = now, -1
		}
	}
	waits, again := s.giveUp(r)
	if waits { // which is counted by now, so that those that begin in its place meet the limit
		stuck()
	}
	return again
}

// giveUp counts a process as unread that waits in the kernel, unless it is over by now, or is to be read again.
func (s *scan) giveUp(r *scanner) (waits, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.over {
		return false, false
	}
	r.over = true
	s.stuck++
	if r.looking.Load() && !r.careful {
		s.remote = true
		return true, true
	}
	s.unread(r.owner, r.pid, r.comm, errStuck)
	if r.owner.pod {
		r.owner.err = errStuck
	}
	return true, false
}

// admit makes known to which owner the process of a scanner belongs by now. It returns why no process of that is read any more.
func (s *scan) admit(r *scanner, comm, podUID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.over {
		return errStuck
	}
	r.comm = comm
	if podUID != r.podUID { // as a process that a runtime has started for a container
		r.owner = s.ownerOf(podUID, r.pid)
	}
	if s.stuck >= maxStuck || r.owner.pod && s.stuck >= maxStuckPods {
		return errStuck
	}
	return r.owner.err
}

// ownerOf returns the owner of a process. The caller holds the lock, or nothing is read.
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

// add adds what a scanner has found in its process to the answer.
func (s *scan) add(r *scanner, podUID string, held map[Number]bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.over { // it counts as unread already
		return
	}
	r.over = true
	for n := range held {
		s.holders = append(s.holders, Holder{PID: r.pid, Comm: r.comm, Number: n, PodUID: podUID})
	}
	if err == nil {
		return
	}
	s.unread(r.owner, r.pid, r.comm, err)
	if errors.Is(err, errWork) {
		r.owner.err = errWork
	}
}

// unread counts a process of an owner. The caller holds the lock.
func (s *scan) unread(o *owner, pid int, comm string, err error) {
	if o.unread == 0 {
		o.cause = fmt.Sprintf("process %d (%q): %v", pid, comm, err)
	}
	o.unread++
}

// answer returns what was found.
func (s *scan) answer() Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := Answer{Holders: s.holders}
	for podUID, o := range s.owners {
		if o.unread > 0 {
			any := !o.pod || slices.ContainsFunc(o.pids, s.privileged)
			a.Unread = append(a.Unread, Unread{PodUID: podUID, Any: any, Count: o.unread, Cause: o.cause})
		}
	}
	slices.SortFunc(a.Holders, compareHolders)
	slices.SortFunc(a.Unread, func(u, v Unread) int { return strings.Compare(u.PodUID, v.PodUID) })
	return a
}

// initUserNamespace is the host's user namespace (USER_NS_INIT_INO of include/uapi/linux/nsfs.h, 0xEFFFFFFD).
const initUserNamespace = "user:[4026531837]"

// privileged reports whether a process could have got CAP_SYS_ADMIN on the host, as those of a privileged pod could, which has
// all devices. Nothing else cheap says what a pod may open. The device cgroup of version 2 is a BPF program, which only
// CAP_BPF may list. In a user namespace of its own a process has all capabilities, and none over devices. Outside of one the
// bounding set only shrinks (capabilities(7)). A process that is gone says nothing, and its pod has others.
func (s *scan) privileged(pid int) bool {
	dir := filepath.Join(s.proc, strconv.Itoa(pid))
	space, err := os.Readlink(filepath.Join(dir, "ns/user"))
	if err != nil {
		return !isGone(err)
	}
	if space != initUserNamespace {
		return false
	}
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return !isGone(err)
	}
	_, after, _ := strings.Cut(string(text), "\nCapBnd:\t")
	digits, _, _ := strings.Cut(after, "\n")
	bounding, err := strconv.ParseUint(digits, 16, 64)
	return err != nil || bounding&(1<<unix.CAP_SYS_ADMIN) != 0
}

// isGone reports whether an error says that a process, or a descriptor of one, has ended.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

// skipGone returns no error for what has ended in between.
func skipGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}
