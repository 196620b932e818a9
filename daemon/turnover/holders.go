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

// closeTimeout is how long a worker waits for other processes to close the device and for the last pod to end. A container
// runtime stops the sandbox one or two seconds after the containers. While it waits, the worker repeats its check every
// pollInterval.
const (
	closeTimeout = 5 * time.Second
	pollInterval = 200 * time.Millisecond
)

// users is the result of a search for processes that have a device open.
type users struct {
	ownPod    bool   // a process of the pod that holds the device has it open
	otherUser string // describes the first process found outside that pod, or empty
	mayClose  bool   // the other process may soon close the device, for example because its pod is ending
}

// look finds the processes that have a device open. The parameter owners contains the UIDs of the pods that hold the device now.
// If the flag "mayHold" is set, the processes of these pods may have the device open. Daemons on the node may monitor some
// devices, such as GPUs. For such a device, look ignores processes that do not belong to an earlier pod. If metalplug cannot read
// the open files of a process, look treats the process as a user only if its pod has or had the device. A claim's pods are
// unknown. If a claim held the device, look therefore treats every unreadable process as a user.
func (j *job) look(ctx context.Context, owners []string, mayHold bool) (who users, err error) {
	nodes := j.Allocation.ExclusiveNodes()
	if j.Host.Touch.Holders == nil {
		return who, nil
	}
	if len(nodes) == 0 {
		return who, fmt.Errorf("find the processes that have the device open: %w", device.ErrIncomplete)
	}
	holders, err := j.Host.Touch.Holders(ctx, nodes)
	if err != nil {
		return who, fmt.Errorf("find the processes that have the device open: %w", err)
	}
	pods, all := j.Pods()
	for _, h := range holders {
		owner, had := slices.Contains(owners, h.PodUID), slices.Contains(pods, h.PodUID) || h.Unread != "" && !all
		switch {
		case h.Unread != "" && !owner && !had:
		case mayHold && h.PodUID != "" && owner:
			who.ownPod = true
		case who.otherUser != "", !j.Target.IsSole() && !had:
		case h.Unread != "":
			who.otherUser = fmt.Sprintf("pod %s may have the device open: %s", h.PodUID, h.Unread)
		case h.PodUID != "":
			who.otherUser = fmt.Sprintf("pod %s has the device open (%q, pid %d)", h.PodUID, h.Command, h.PID)
		default:
			who.mayClose, who.otherUser = true, fmt.Sprintf("a process of the host has the device open (%q, pid %d)", h.Command, h.PID)
		}
	}
	return who, nil
}

// retryUntil calls the function "question" every pollInterval. retryUntil stops when this function returns true or an error,
// after closeTimeout, or when ctx ends.
func retryUntil(ctx context.Context, question func() (answered bool, err error)) error {
	for end := time.Now().Add(closeTimeout); ; {
		if answered, err := question(); answered || err != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// waitForUsers waits while processes have the device open that may soon close it. For example, udev and metalplugd open a disk
// briefly after every change, and a pod's sandbox ends some time after its containers. If the flag "next" is set, the next pod is
// about to get the device. No process may then have the device open, and all earlier pods must have ended. Otherwise, waitForUsers
// ignores the processes of the pods that hold the device, and the result ownPod reports whether there are any. The parameter owners
// contains the UIDs of these pods. The error is [ErrBusy] if another process has the device open.
func (j *job) waitForUsers(ctx context.Context, owners []string, next bool) (ownPod bool, err error) {
	var who users
	err = retryUntil(ctx, func() (bool, error) {
		who, err = j.look(ctx, owners, !next)
		if next && err == nil && who.otherUser == "" {
			who.otherUser, err = j.describeRunning()
			who.mayClose = who.otherUser != ""
		}
		return !who.mayClose, err
	})
	if err == nil && who.otherUser != "" {
		err = fmt.Errorf("%w: %s", ErrBusy, who.otherUser)
	}
	return who.ownPod, err
}

// describeRunning returns a description of an earlier pod that still has a process, or an empty string. Such a process may open
// the device at any time. The process may also have registered files with io_uring, which metalplug cannot see. For a disk that
// must be erased, the error is [ErrBusy] if metalplug cannot find out whether a pod is still running. For other devices, a
// missing kubepods cgroup is not an error. metalplug cannot check a claim's pods, because it does not know them.
func (j *job) describeRunning() (who string, err error) {
	if j.Running == nil || !j.Target.IsSole() {
		return "", nil
	}
	scrubs := j.Target.IsDisk() && j.policy.Reset.Scrubs()
	pods, _ := j.Pods()
	for _, pod := range pods {
		runs, err := j.Running(pod)
		switch {
		case err != nil && scrubs:
			return "", fmt.Errorf("%w: check whether pod %s still runs: %w", ErrBusy, pod, err)
		case errors.Is(err, cgroup.ErrNoKubepods):
		case err != nil:
			return "", fmt.Errorf("check whether pod %s still runs: %w", pod, err)
		case runs:
			return fmt.Sprintf("pod %s still runs", pod), nil
		}
	}
	return "", nil
}

// checkUnused checks that no process has a released device open, and that the device's pods have ended.
func (j *job) checkUnused(ctx context.Context) error {
	_, err := j.waitForUsers(ctx, nil, true)
	return err
}
