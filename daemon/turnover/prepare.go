// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/unit"
)

// startLimit limits the work before a container starts. The kubelet allows 30 s for PreStartContainer (kubernetes v1.36,
// pluginapi.KubeletPreStartContainerRPCTimeoutInSecs). The call itself and the helper's answer need some of this time.
const startLimit = 25 * time.Second

// Start prepares devices in parallel for a container that is about to start. Each device is prepared as the resource in its
// status configures. Start may be called again for the same devices. If Start returns an error, the container must not start.
// [ErrBusy] means that a device is unchanged, because a process still has it open. This process may be in the same pod. Start
// blocks until all work is done and recorded, which takes at most 29 seconds. If the kubelet disconnects, ctx ends, but the work
// continues, because the device is not at fault.
func (t *Turnover) Start(ctx context.Context, devices []*inventory.Status) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit+device.AnswerTime)
	defer cancel()
	owners, err := t.ownersOf(ctx, devices)
	if err != nil {
		return err
	}
	keep := slices.ContainsFunc(devices, func(s *inventory.Status) bool {
		policy := t.policyFor(s.Resource)
		return lease.Rule{Disk: s.Target.IsDisk(), Scrubs: policy.Reset.Scrubs()}.StartWaits(policy.Reset.AtRelease())
	})
	return t.start(ctx, devices, owners, keep)
}

// StartFor is like Start, but prepares the devices for the containers of the claim that holds them. StartFor has no time limit
// other than the reset timeouts of the resources, and stops when ctx ends. The caller must wait until the result is on disk.
func (t *Turnover) StartFor(ctx context.Context, devices []*inventory.Status, claim string) error {
	owners := make(map[string][]string)
	for _, s := range devices {
		owners[s.Name()] = []string{lease.OfClaim(claim)}
	}
	return t.start(ctx, devices, owners, false)
}

// start prepares devices for their tenants. If the flag "keep" is set, start waits until the result is on disk. Before a
// container with a disk starts, the state file must contain two facts. The first is that metalplug must erase the disk later.
// The second is that the evidence for an unused disk is no longer valid. Other devices need no such record.
func (t *Turnover) start(ctx context.Context, devices []*inventory.Status, owners map[string][]string, keep bool) error {
	ids := make([]string, len(devices))
	errs := make([]error, len(devices))
	var all sync.WaitGroup
	for i, s := range devices {
		ids[i] = s.Device.ID
		all.Go(func() { errs[i] = t.startOne(ctx, s, owners[s.Name()]) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if keep {
		if err := t.Inventory.WaitSaved(ctx); err != nil {
			return fmt.Errorf("%w: the state of the container's data cannot be saved: %w", ErrUnfit, err)
		}
	}
	return t.Inventory.Started(ctx, ids...)
}

// ownersOf returns the UIDs of the pods in the kubelet's checkpoint, by device ID. The kubelet writes the checkpoint before it
// starts a container. However, a device list from a plugin can make the kubelet replace the checkpoint with an older state. The
// kubelet's function writeCheckpoint collects the state under a lock, but releases the lock before it writes the state
// (kubernetes v1.31 and v1.36, pkg/kubelet/cm/devicemanager/manager.go). The kubelet writes the checkpoint again after each
// later list. If the checkpoint is outdated, ownersOf therefore sends a list and waits for at most closeTimeout.
func (t *Turnover) ownersOf(ctx context.Context, devices []*inventory.Status) (owners map[string][]string, err error) {
	err = retryUntil(ctx, func() (bool, error) {
		if owners, err = t.Owners(); err != nil {
			return false, fmt.Errorf("find the pods of the devices: %w", err)
		}
		behind := make(map[string]kubelet.Holding)
		for _, s := range devices {
			now, err := t.Inventory.Current(ctx, s.Device.ID)
			if err != nil {
				return false, err
			}
			if !t.policyFor(s.Resource).SharesUse() && now.CheckpointOutdated(owners[now.Name()]) {
				behind[now.Name()] = kubelet.Noted
			}
		}
		if len(behind) > 0 {
			t.Inventory.Confirm(kubelet.Answer{Holdings: behind})
		}
		return len(behind) == 0, nil
	})
	return owners, err
}

// startOne prepares one device for its pods, within the reset timeout of the resource that the parameter s names. The parameter
// owners contains the UIDs of these pods.
func (t *Turnover) startOne(ctx context.Context, s *inventory.Status, owners []string) error {
	id, rules := s.Device.ID, t.policyFor(s.Resource)
	ctx, cancel := context.WithTimeout(ctx, max(rules.Reset.Timeout, time.Second)+device.AnswerTime)
	defer cancel()
	j, err := t.take(ctx, id)
	if err != nil {
		return err
	}
	defer j.finish()
	j.policy = rules // the rules of this resource apply, even if the device now belongs to another resource
	if err := j.begin(ctx, lease.Prepare, errand{}); err != nil {
		return err
	}
	p, err := j.prepare(ctx, owners)
	// Record the result only after the vendor unit has ended. Otherwise, if metalplugd ended while the unit was running, the
	// next run would not erase the data that the unit has written.
	j.Inventory.Prepared(id, p)
	if errors.Is(ctx.Err(), context.Canceled) {
		j.fail(ctx, err, errand{})
		return cmp.Or(err, ctx.Err())
	}
	if err != nil {
		j.fail(ctx, err, errand{})
		j.note(j.Status, audit.Refused, err, audit.Entry{Pods: owners})
		return err
	}
	j.note(j.Status, audit.Started, nil, audit.Entry{Pods: owners})
	j.outcome = inventory.Outcome{Event: lease.Start, Tenants: owners}
	return nil
}

// prepare prepares the device for a container of its pod. If other pods or the host may also use the device, prepare runs only
// the vendor units. However, no pod gets the data that an earlier pod left before the configuration was reloaded.
func (j *job) prepare(ctx context.Context, owners []string) (p device.Report, err error) {
	id, first, shares, fresh := j.Device.ID, j.First(owners), j.policy.SharesUse(), j.New(owners)
	unproven := fmt.Errorf("%s: %w: the disk may contain data that is not from this pod; delete the pod", id, device.ErrUnproven)
	switch {
	case !j.Present && (fresh || !shares):
		return p, fmt.Errorf("%s: %w", id, device.ErrGone)
	case !j.Proven && !j.Target.IsDisk():
		return p, fmt.Errorf("%s: %w: the hardware cannot be identified now", id, device.ErrIncomplete)
	case shares && fresh && !j.Proven:
		return p, unproven
	case shares:
		return p, j.runUnits(ctx)
	case j.CheckpointOutdated(owners):
		return p, fmt.Errorf("%s: %w: the kubelet's checkpoint does not name the pod; if this persists, delete the pod", id, ErrBusy)
	}
	ownPod, err := j.waitForUsers(ctx, owners, first) // before the first container, not even a process of the same pod is ignored
	switch {
	case err != nil:
		return p, fmt.Errorf("%s: %w", id, err)
	case ownPod: // another container in the pod, such as a sidecar, uses the device
		return p, nil
	}
	w := j.Preparation(j.rule(), first, j.Same())
	if w.Content == lease.Unused && !j.Proven {
		return p, unproven
	}
	snapshot, _ := j.Inventory.Snapshot() // the operator may have cordoned the disk during the earlier checks
	if now := snapshot.Find(id); w.Erase && now != nil && now.Cordon != nil {
		return p, fmt.Errorf("%s: %w: the disk is cordoned; to erase the disk, run \"metalplugctl uncordon %[1]s\"", id, ErrBusy)
	}
	if p, err = j.askHelper(ctx, w); err != nil {
		return p, err
	}
	if w.Content == lease.Unused && p.Size != j.Evidence.Size { // the evidence does not cover the new part of the disk
		return p, unproven
	}
	return p, j.runUnits(ctx)
}

// runUnits runs the vendor unit before a container starts. If the init unit has not run since the hardware appeared, runUnits
// first runs the init unit.
func (j *job) runUnits(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok { // leave time to stop the unit before the deadline
		limited, cancel := context.WithDeadline(ctx, end.Add(-device.AnswerTime))
		defer cancel()
		ctx = limited
	}
	if j.Init != "" {
		err := j.unit(ctx, unit.Init, j.Init)
		j.Inventory.Initialised(j.Device.ID, j.Init, err)
		if err != nil {
			return err
		}
	}
	return j.unit(ctx, unit.Start, j.policy.Units.Start)
}
