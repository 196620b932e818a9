// SPDX-License-Identifier: Apache-2.0

package helper

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// askHolders asks metalplug-holders which processes have the devices with the given nodes open. For each device, the request
// contains all of its nodes. askHolders first waits for metalplug-reset to finish its work on these devices, because
// metalplug-reset may itself have a disk open.
func (h *client) askHolders(ctx context.Context, nodes []string) ([]device.Holder, error) {
	var numbers []cgroup.Number
	var paths []string
	for _, node := range nodes {
		n, err := numberOf(node)
		if err != nil {
			return nil, err
		}
		all, at, err := h.findNodes(n)
		if err != nil {
			return nil, err
		}
		for _, n := range all { // several nodes may belong to one disk
			if !slices.Contains(numbers, n) {
				numbers = append(numbers, n)
			}
		}
		paths = append(paths, at...)
	}
	unlock, err := h.lockAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	defer unlock()
	answer, err := h.ask(ctx, numbers)
	if err != nil {
		return nil, err
	}
	var holders []device.Holder
	for _, holder := range answer.Holders {
		if slices.Contains(numbers, holder.Number) { // the answer also contains the holders for other callers
			holders = append(holders, device.Holder{PID: holder.PID, Command: holder.Comm, PodUID: holder.PodUID})
		}
	}
	for _, u := range answer.Unread {
		holders = append(holders, device.Holder{PodUID: u.PodUID, Unread: u.Cause})
	}
	return holders, nil
}

const (
	// gathering is how long a request waits for other callers to join. When a container with several devices starts, all callers
	// share one request.
	gathering = 2 * time.Millisecond
	// questionLimit is the time limit for one request to metalplug-holders. On a busy node, systemd may take seconds to start the
	// program.
	questionLimit = 20 * time.Second
)

// question is one request that several callers share.
type question struct {
	numbers []cgroup.Number
	done    chan struct{} // closed when there is an answer or an error
	answer  cgroup.Answer // the answer for the numbers of all callers
	err     error
}

// ask returns the processes that have nodes with these numbers open. Simultaneous callers share one request.
func (h *client) ask(ctx context.Context, numbers []cgroup.Number) (cgroup.Answer, error) {
	h.mu.Lock()
	q := h.next
	if q == nil || len(q.numbers)+len(numbers) > cgroup.MaxNumbers {
		q = &question{done: make(chan struct{})}
		h.next = q
		go h.send(q)
	}
	q.numbers = append(q.numbers, numbers...)
	h.mu.Unlock()
	select {
	case <-q.done:
		return q.answer, q.err
	case <-ctx.Done():
		return cgroup.Answer{}, fmt.Errorf("call %s: %w", cgroup.Program, ctx.Err())
	}
}

// send sends a question and waits for the answer. Further callers can join while the helper starts.
func (h *client) send(q *question) {
	defer close(q.done)
	finish := func() []cgroup.Number { // after this call, no further caller can join
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.next == q { // otherwise, a new question has already replaced a full one
			h.next = nil
		}
		return q.numbers
	}
	ctx, cancel := context.WithTimeout(context.Background(), questionLimit)
	defer cancel()
	q.answer, q.err = h.holders.Holders(ctx, func() []cgroup.Number {
		<-time.After(gathering)
		return finish()
	})
	finish() // the helper may not have started
}

// lockAll locks several devices. lockAll locks each of them once and in sorted order, so that callers never deadlock.
func (h *client) lockAll(ctx context.Context, paths []string) (unlock func(), err error) {
	paths = slices.DeleteFunc(paths, func(path string) bool { return path == "" })
	slices.Sort(paths)
	var unlocks []func()
	unlock = func() {
		for _, one := range unlocks {
			one()
		}
	}
	for _, path := range slices.Compact(paths) {
		one, err := h.lock(ctx, path)
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, one)
	}
	return unlock, nil
}

// numberOf returns a node's device number.
func numberOf(path string) (n cgroup.Number, err error) {
	var found unix.Stat_t
	if err := unix.Stat(path, &found); err != nil {
		return n, &fs.PathError{Op: "find", Path: path, Err: err}
	}
	number, block := sysfs.Number(found)
	if number == "" {
		return n, fmt.Errorf("find %s: the file is not a device node", path)
	}
	return cgroup.ParseNumber(block, number)
}

// findNodes returns the numbers and the sysfs paths of all nodes that give access to a device. The device's own node comes
// first. For a device that is not in sysfs, findNodes returns only the given number (Documentation/ABI/testing/sysfs-dev).
func (h *client) findNodes(n cgroup.Number) (numbers []cgroup.Number, paths []string, err error) {
	kind := "char"
	if n.Block {
		kind = "block"
	}
	numbers = []cgroup.Number{n}
	own := h.sysfs.Resolve(fmt.Sprintf("/sys/dev/%s/%d:%d", kind, n.Major, n.Minor))
	if own == "" {
		return numbers, nil, nil
	}
	nodes, err := h.sysfs.NodesOf(own)
	if err != nil {
		return nil, nil, err
	}
	for _, node := range nodes {
		if node.Number == "" {
			continue
		}
		n, err := cgroup.ParseNumber(node.Block, node.Number)
		if err != nil {
			return nil, nil, fmt.Errorf("read %s/dev: %w", node.SysPath, err)
		}
		if !slices.Contains(numbers, n) {
			numbers = append(numbers, n)
		}
		paths = append(paths, node.SysPath)
	}
	return numbers, paths, nil
}
