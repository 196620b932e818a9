// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/device"
)

// patience is how long a process of the node may have a device open for a moment, and how long the pod of before may take to
// end. A runtime stops the sandbox after the containers, which takes a second or two. The question is repeated each
// glancePause.
const (
	patience    = 5 * time.Second
	glancePause = 200 * time.Millisecond
)

// users are the processes that have a device open.
type users struct {
	own    bool   // some of the pod that it belongs to
	others string // the first of all others, for people, or empty
	soon   bool   // others may be over in a moment, as a process of the node or the end of a pod
}

// look finds out which processes have a device open. owners are the pods that the kubelet has given it to, which may if ours
// is set. If daemons may watch a device, as they do with GPUs, only the pods count that have had it. A process that could not
// be read counts only if its pod could have the device, as an owner or a pod of before.
func (j *job) look(ctx context.Context, owners []string, ours bool) (who users, err error) {
	nodes := j.Allocation.Own()
	if j.Host.Touch.Holders == nil {
		return who, nil
	}
	var holders []device.Holder
	if err = device.ErrIncomplete; len(nodes) > 0 {
		holders, err = j.Host.Touch.Holders(ctx, nodes)
	}
	if err != nil {
		return who, fmt.Errorf("who has %s open cannot be told: %w", j.Device.ID, err)
	}
	for _, h := range holders {
		owner, had := slices.Contains(owners, h.PodUID), slices.Contains(j.Tenants, h.PodUID)
		switch {
		case h.Unread != "" && !owner && !had:
		case ours && h.PodUID != "" && owner:
			who.own = true
		case who.others != "", !j.Target.IsSole() && !had:
		case h.Unread != "":
			who.others = fmt.Sprintf("pod %s may have it open: %s", h.PodUID, h.Unread)
		case h.PodUID != "":
			who.others = fmt.Sprintf("pod %s has it open (%s, pid %d)", h.PodUID, h.Command, h.PID)
		default:
			who.soon, who.others = true, fmt.Sprintf("this host has it open (%s, pid %d)", h.Command, h.PID)
		}
	}
	return who, nil
}

// lookForNext does the same for the next pod. No process may have the device open, and the pods of before must have ended.
func (j *job) lookForNext(ctx context.Context, owners []string) (who users, err error) {
	if who, err = j.look(ctx, owners, false); err != nil || who.others != "" {
		return who, err
	}
	who.others, err = j.running()
	who.soon = who.others != ""
	return who, err
}

// patiently repeats a question each glancePause until it is answered or fails, or until patience or ctx ends.
func patiently(ctx context.Context, question func() (answered bool, err error)) error {
	for end := time.Now().Add(patience); ; {
		if answered, err := question(); answered || err != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(glancePause):
		case <-ctx.Done():
			return nil
		}
	}
}

// settled returns the answer of a look once it cannot change in a moment. udev and the daemon open a disk after every change,
// and the sandbox of a pod ends after its containers.
func settled(ctx context.Context, look func() (users, error)) (who users, err error) {
	err = patiently(ctx, func() (bool, error) {
		who, err = look()
		return !who.soon, err
	})
	return who, err
}

// running returns, for people, a pod of before that still has a process, or empty. The process may open the device at any time,
// and no list shows the files that it has registered with io_uring. For a disk that is erased the error is [ErrBusy] if the
// answer is not known. For other devices the pods may be unknown.
func (j *job) running() (who string, err error) {
	if j.Running == nil || !j.Target.IsSole() {
		return "", nil
	}
	scrubs := j.Target.IsDisk() && j.care.scrubs()
	for _, pod := range j.Tenants {
		runs, err := j.Running(pod)
		switch {
		case err != nil && scrubs:
			return "", fmt.Errorf("%w: whether pod %s still runs cannot be told: %w", ErrBusy, pod, err)
		case errors.Is(err, cgroup.ErrNoKubepods):
		case err != nil:
			return "", fmt.Errorf("whether pod %s still runs cannot be told: %w", pod, err)
		case runs:
			return fmt.Sprintf("pod %s still runs", pod), nil
		}
	}
	return "", nil
}

// left makes sure that no process has a released device open, and that its pods have ended.
func (j *job) left(ctx context.Context) error {
	who, err := settled(ctx, func() (users, error) { return j.lookForNext(ctx, nil) })
	lingers := who.others
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		lingers = err.Error()
	case who.others != "":
		err = fmt.Errorf("%w: %s", ErrBusy, who.others)
	}
	j.Inventory.Delayed(j.Device.ID, lingers)
	return err
}
