// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ErrIncomplete means that a process may hold a device without being named. A caller that needs the device free must
// treat it as in use.
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

// ParseNumber reads the attribute dev of a device in sysfs, as in "259:1".
func ParseNumber(block bool, dev string) (Number, error) {
	n := Number{Block: block}
	if _, err := fmt.Sscanf(dev, "%d:%d", &n.Major, &n.Minor); err != nil {
		return Number{}, fmt.Errorf("invalid device number %.40q: must be as in %q", dev, "259:1")
	}
	return n, nil
}

// Holder is a process that has a device node open or mapped into its memory.
type Holder struct {
	PID    int    `json:"pid"`
	Comm   string `json:"comm"` // its name, at most 15 bytes of its own choice, to be printed in quotes
	Number Number `json:"node"`
	PodUID string `json:"pod,omitempty"` // of its pod, or "" for a process of the host
}

// Unread stands for the processes of one pod, or of the host, that could not be read.
type Unread struct {
	PodUID string `json:"pod,omitempty"` // "" for the host
	// Any reports whether they may hold any device. Processes of the host may, and those of a pod with CAP_SYS_ADMIN, which is
	// privileged. Others can hold only what the kubelet gave their pod.
	Any   bool   `json:"any,omitempty"`
	Count int    `json:"count"` // processes
	Cause string `json:"cause"` // why the first of them could not be read
}

// Answer is who holds some device nodes.
type Answer struct {
	Holders []Holder `json:"holders,omitempty"` // by PID and number
	Unread  []Unread `json:"unread,omitempty"`  // by PodUID
}

// Err returns an error that is [ErrIncomplete] if an unread process may hold a device that only these pods could have. Unread
// processes of the host and of privileged pods always count. Those of other pods do not.
func (a Answer) Err(pods ...string) error {
	count, cause := 0, ""
	for _, u := range a.Unread {
		if u.Any || slices.Contains(pods, u.PodUID) {
			count += u.Count
			cause = cmp.Or(cause, u.Cause)
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("look at processes: %w: %d of them: %s", ErrIncomplete, count, cause)
}

// Holders returns which processes hold device nodes of the given numbers. A process holds a node by a descriptor, or by a
// mapping that stays when the descriptor is closed, as with VFIO, DFL and the memory of GPUs. The node itself may be anywhere,
// also in the /dev of a container. For a disk the numbers of its other nodes, partitions and controllers belong to the
// question.
//
// proc is where the host's procfs is. asker is the process that asks, which is left out with all its threads, or 0. The caller
// needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for the descriptors of others, and CAP_CHECKPOINT_RESTORE (Linux 5.9, before
// that CAP_SYS_ADMIN) for mappings. The error is that of [Answer.Err] without pods. The answer then names the others. A
// descriptor that was opened with O_PATH counts although it does not keep the device in use. No device is opened here.
//
// No process can make the answer wrong about another pod, endless or large. A process that keeps the kernel from answering for
// a second, and a pod with more descriptors, mappings and threads than fit into a bounded amount of work, counts as unread. A
// descriptor of a file that cannot be looked at, as of another user's FUSE, is judged by its mount. A process stuck in the
// kernel keeps a thread of this one, so run this function in a process that can be given up.
//
// Processes are listed again until there is no new one, so that a descriptor is found that a process leaves to its children. A
// pod that starts processes on and on counts as unread. The host does not then.
//
// The answer is that of a moment, and a process can pass a descriptor on while it is looked for. Only opening the device
// exclusively excludes all others. Holders does not see users in the kernel (mounts, swap, device mapper, md, loop devices,
// nvmet), descriptors in flight between sockets (SCM_RIGHTS), or files registered with io_uring whose descriptor is closed.
// Nor does it see a file that a driver gives out as its own (DMA buffers, the device descriptors of VFIO, queue pairs of RDMA
// after the device is gone).
func Holders(proc string, numbers []Number, asker int) (Answer, error) {
	s := newScan(proc, numbers, asker)
	if err := s.run(); err != nil {
		return Answer{}, fmt.Errorf("look at processes: %w", err)
	}
	answer := s.answer()
	return answer, answer.Err()
}

// compareHolders orders by PID and number.
func compareHolders(a, b Holder) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Number.String(), b.Number.String()))
}
