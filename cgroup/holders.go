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

	"golang.org/x/sys/unix"
)

// ErrIncomplete: some process may hold a device without being named. Whoever needs to know that a device is free must
// take it for in use.
var ErrIncomplete = errors.New("not all processes could be looked at")

// Number is the number of a device node.
type Number struct {
	Block        bool // of a block device, else of a character device
	Major, Minor uint32
}

// String returns the number as in "c 195:0" or "b 259:1".
func (n Number) String() string {
	kind := 'c'
	if n.Block {
		kind = 'b'
	}
	return fmt.Sprintf("%c %d:%d", kind, n.Major, n.Minor)
}

// compare orders character devices before block devices, then by major and minor.
func (n Number) compare(m Number) int {
	if n.Block != m.Block {
		if m.Block {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(n.Major, m.Major), cmp.Compare(n.Minor, m.Minor))
}

// Holder is a process that has a device node open or mapped into its memory.
type Holder struct {
	PID       int
	Comm      string // its name, at most 15 bytes of its own choice: not to be printed without quotes
	Number    Number // of the node
	Container Container
}

// Answer is who holds some device nodes.
type Answer struct {
	Holders []Holder // by PID and number; over a [Client] the first of each container and node comes first
	More    int      // further holders, each of a container and node that is among Holders; only over a [Client]
	Unread  int      // processes of which it is not known what they hold
	Cause   string   // why, for the first of those
}

// Err returns an error that is [ErrIncomplete] if there may be holders that are not named.
func (a Answer) Err() error {
	if a.Unread == 0 {
		return nil
	}
	return fmt.Errorf("look at processes: %w: %d of them: %s", ErrIncomplete, a.Unread, a.Cause)
}

// Holders returns which processes hold device nodes of the given numbers: by a descriptor, or by a mapping that stays
// when the descriptor is closed, as with VFIO, DFL and the memory of GPUs. The node itself may be anywhere, also in the
// /dev of a container. For a disk the numbers of its partitions belong to the question.
//
// proc is where the host's procfs is. The caller needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for the descriptors of
// others, and CAP_CHECKPOINT_RESTORE (Linux 5.9; before that CAP_SYS_ADMIN) for mappings. The error is [ErrIncomplete]
// where a process could not be read; the answer then names the others. A descriptor that was opened with O_PATH counts
// although it does not keep the device in use. No device is opened here and no file server is asked.
// It blocks as long as it takes, which may be for ever while some process is stuck in the kernel with its memory locked:
// run it in a process that can be given up.
//
// The answer is that of a moment, and a process can pass a descriptor on while it is looked for; only opening the device
// exclusively excludes all others. Not to be seen here are: users in the kernel (mounts, swap, device mapper, md, loop
// devices, nvmet), descriptors in flight between sockets (SCM_RIGHTS), files registered with io_uring whose descriptor
// is closed, and what a driver gives out as a file of its own (DMA buffers, the device descriptors of VFIO, queue pairs
// of RDMA after the device is gone).
func Holders(proc string, numbers []Number) (Answer, error) {
	s := scan{proc: proc, wanted: make(map[Number]bool), seen: make(map[int]bool), files: make(map[string]Number)}
	for _, n := range numbers {
		s.wanted[n] = true
	}
	if err := s.run(); err != nil {
		return Answer{}, fmt.Errorf("look at processes: %w", err)
	}
	slices.SortFunc(s.answer.Holders, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), a.Number.compare(b.Number))
	})
	return s.answer, s.answer.Err()
}

// scan is one look at all processes.
type scan struct {
	proc   string
	wanted map[Number]bool
	seen   map[int]bool      // processes that have been looked at
	files  map[string]Number // mapped ones, by what "maps" says of them; zero: no wanted device
	answer Answer
}

// rounds is how often processes are listed: once more finds those that were started meanwhile and have inherited
// descriptors. Somewhere some process is always started, so there must be an end.
const rounds = 4

// initPIDNamespace is the host's PID namespace (PID_NS_INIT_INO of include/uapi/linux/nsfs.h, 0xEFFFFFFC).
const initPIDNamespace = "pid:[4026531836]"

func (s *scan) run() error {
	space, err := os.Readlink(filepath.Join(s.proc, "self/ns/pid"))
	if err != nil {
		return err
	}
	if space != initPIDNamespace {
		return fmt.Errorf("%w: %s is not that of the host's PID namespace", ErrIncomplete, s.proc)
	}
	for range rounds {
		found, err := s.round()
		if err != nil || found == 0 {
			return err
		}
	}
	return nil
}

// round looks at the processes that it has not seen before and returns how many those were.
func (s *scan) round() (found int, err error) {
	pids, err := list(s.proc)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(pids, 1) { // hidepid of proc(5) hides processes without a word
		return 0, fmt.Errorf("%w: %s hides those of others: CAP_SYS_PTRACE is needed", ErrIncomplete, s.proc)
	}
	for _, pid := range pids {
		if !s.seen[pid] {
			s.seen[pid] = true
			found++
			s.process(pid)
		}
	}
	return found, nil
}

// process adds what one process holds to the answer. One that ends meanwhile holds nothing.
func (s *scan) process(pid int) {
	p, err := readProcess(s.proc, pid)
	held := make(map[Number]bool)
	for _, task := range p.tasks {
		err = cmp.Or(err, s.descriptors(task, held)) // the first error says enough
		err = cmp.Or(err, s.mappings(task, held))
	}
	var text []byte
	if len(held) > 0 {
		var readErr error
		if text, readErr = os.ReadFile(filepath.Join(s.proc, strconv.Itoa(pid), "cgroup")); isGone(readErr) {
			return
		}
		err = cmp.Or(err, readErr) // it is named all the same, as one of the host
	}
	if err != nil {
		s.unread(pid, p.comm, err)
	}
	for n := range held {
		s.answer.Holders = append(s.answer.Holders, Holder{PID: pid, Comm: p.comm, Number: n, Container: containerOf(string(text))})
	}
}

func (s *scan) unread(pid int, comm string, err error) {
	if s.answer.Unread == 0 {
		s.answer.Cause = fmt.Sprintf("process %d (%q): %v", pid, comm, err)
	}
	s.answer.Unread++
}

// isGone tells whether an error says that a process, or a descriptor of one, has ended.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}
