// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ErrIncomplete means that the answer may omit a process that holds a device, because some processes could not be inspected. A
// caller that needs a free device must assume that the device is in use.
var ErrIncomplete = errors.New("not all processes could be inspected")

// Number identifies a device by its node's type and number.
type Number struct {
	Block        bool // set for a block device, not set for a character device
	Major, Minor uint32
}

// String returns the number in the form "c 195:0" or "b 259:1".
func (n Number) String() string {
	kind := 'c'
	if n.Block {
		kind = 'b'
	}
	return fmt.Sprintf("%c %d:%d", kind, n.Major, n.Minor)
}

// ParseNumber parses a device's sysfs attribute dev, for example "259:1".
func ParseNumber(block bool, dev string) (Number, error) {
	n := Number{Block: block}
	if _, err := fmt.Sscanf(dev, "%d:%d", &n.Major, &n.Minor); err != nil {
		return Number{}, fmt.Errorf("invalid device number %.40q: must be as in %q", dev, "259:1")
	}
	return n, nil
}

// Holder is a process that has a device node open or mapped into its memory.
type Holder struct {
	PID int `json:"pid"`
	// name of at most 15 bytes; print the name in quotes, because the process can choose its name
	Comm   string `json:"comm"`
	Number Number `json:"node"`
	PodUID string `json:"pod,omitempty"` // UID of the process's pod, or "" for a host process
}

// Unread describes processes whose open files could not be read. All of them belong to the same pod, or to the host.
type Unread struct {
	PodUID string `json:"pod,omitempty"` // "" for the host
	// Any reports whether the processes may hold any device on the node. Any is set for the host and for privileged pods, which
	// have CAP_SYS_ADMIN. Other pods can hold only devices that the kubelet gave them.
	Any   bool   `json:"any,omitempty"`
	Count int    `json:"count"` // number of processes
	Cause string `json:"cause"` // why the first of these processes could not be inspected
}

// Answer lists the holders of some device nodes.
type Answer struct {
	Holders []Holder `json:"holders,omitempty"` // sorted by PID and number
	Unread  []Unread `json:"unread,omitempty"`  // sorted by PodUID
}

// Err returns an [ErrIncomplete] error if a device may have a holder that could not be inspected. The parameter pods lists all
// pods that the kubelet gave the device to. An uninspected process on the host or in a privileged pod always causes an error. A
// process in any other pod causes an error only if pods lists that pod.
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
	return fmt.Errorf("inspect processes: %w: %d of them: %s", ErrIncomplete, count, cause)
}

// Holders returns the processes that hold device nodes with the given numbers. A process holds a node through a descriptor or a
// mapping. A mapping remains after the descriptor is closed (as with VFIO, DFL and GPU memory). The node may be anywhere, for
// example in the /dev of a container. For a disk, also pass the numbers of its other nodes, its partitions and its controllers.
//
// The parameter proc is the mount point of the host's procfs. The parameter asker is the PID of the requesting process, or 0. The
// answer omits this process and all its threads. The caller needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH to read the descriptors
// of other processes, and CAP_CHECKPOINT_RESTORE (CAP_SYS_ADMIN before Linux 5.9) to read their mappings. The error is the result
// of [Answer.Err] without pods. Even if the error is not nil, the answer contains the holders that were found. The answer omits
// descriptors opened with O_PATH, because they do not keep the device in use. Holders never opens a device.
//
// No process can falsify the answer about another pod, delay the answer indefinitely, or make it large. If the kernel does not
// answer a query about a process within a second, Holders adds the process to [Answer].Unread. The time for each pod and for all
// pods together is limited, except for privileged pods. If a pod takes longer, Holders adds its remaining processes to
// [Answer].Unread. If a file cannot be inspected, for example on another user's FUSE mount, the result depends on the mount's
// type and options. A query about a process that is stuck in the kernel blocks one of the caller's threads, perhaps forever.
// Therefore, call Holders in a separate process, so that the rest of the caller does not hang.
//
// Holders lists the processes again until no new ones appear, because a process may pass a descriptor to a child. If a pod starts
// processes all the time, Holders adds the pod to [Answer].Unread. Holders never adds the host for this reason. Holders also
// rereads a pod's process until the process has not run between two reads, because a running process may move a descriptor to
// another number.
//
// The answer is a snapshot, because a process can pass a descriptor to another process during the search. Only a caller that
// opens the device exclusively can exclude all other users. Holders does not find users inside the kernel (mounts, swap, device
// mapper, md, loop devices, nvmet). Holders does not find descriptors that are being sent over a socket (SCM_RIGHTS). If a file
// is registered with io_uring, Holders does not find it after its descriptor is closed. Holders also does not find files that a
// driver creates itself (DMA buffers, the device descriptors of VFIO, and queue pairs of an RDMA device that is gone).
func Holders(proc string, numbers []Number, asker int) (Answer, error) {
	s := newScan(proc, numbers, asker)
	if err := s.run(); err != nil {
		return Answer{}, fmt.Errorf("inspect processes: %w", err)
	}
	answer := s.answer()
	return answer, answer.Err()
}
