// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
)

const (
	// adoptScrub is the erase method for an adopted disk if neither the operator nor the resource specifies a method.
	adoptScrub = "zero"
	// maxOrderTime limits one attempt to carry out an operator's order. Overwriting a large disk may take a day.
	maxOrderTime = 48*time.Hour - time.Minute
)

// ByHand resets a device that no pod holds. If o contains an erase method, ByHand erases the device instead. In a dry run, ByHand
// makes the same checks, but changes nothing. ByHand blocks until a snapshot shows the work's result, or until ctx ends. The
// error is [inventory.ErrUnknownDevice], [ErrBusy], [ErrUnfit] or an error from the work.
func (t *Turnover) ByHand(ctx context.Context, id string, o api.Change) error {
	if t.Host.Touch.Prepare == nil {
		return fmt.Errorf("%s: %w: the hardware is simulated from a recording", id, ErrUnfit)
	}
	j, err := t.take(ctx, id)
	if err != nil {
		return err
	}
	defer inventory.Settled(ctx, t.Inventory, id)
	defer j.finish()
	switch {
	case !j.Present:
		return fmt.Errorf("%s: %w", id, device.ErrGone)
	case j.Held():
		return fmt.Errorf("%s: %w: a pod holds the device", id, ErrBusy)
	case o.Scrub != "" && j.Blocked != "":
		return fmt.Errorf("%s: nothing was done: %w: %s", id, ErrBusy, j.Blocked)
	case o.Scrub != "" && !j.Target.IsDisk():
		return fmt.Errorf("%s: %w: the device is not a disk", id, ErrUnfit)
	}
	e := errand{order: lease.Reset, scrub: o.Scrub, limit: maxOrderTime}
	if o.Scrub != "" {
		e.order = lease.Erase
	}
	err = j.checkUnused(ctx)
	if err == nil && !o.DryRun {
		err = j.begin(ctx, lease.Clear, e)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: nothing was done: %w", id, err)
	case o.DryRun:
		return nil
	}
	if err = j.clear(ctx, e); err != nil {
		t.Log.Error(string(verdict.CleanUp), "device", id, "resource", j.Taker, "err", err)
	}
	return err
}

// Adopt records the operator's order to erase a disk, regardless of its content, and then to offer it. If o contains no erase
// method, metalplug uses the resource's method. If the resource has no method, metalplug uses adoptScrub. Adopt returns once the
// order is in the state file. After that, [Turnover.Run] erases the disk. In a dry run, Adopt checks whether the order can be
// carried out, but does not record it. The result note states what metalplug will do, or why there is nothing to do.
// The errors are [inventory.ErrUnknownDevice], [ErrBusy] and [ErrUnfit].
func (t *Turnover) Adopt(ctx context.Context, id string, o api.Change) (note string, err error) {
	j, err := t.take(ctx, id)
	if err != nil {
		return "", err
	}
	defer j.finish()
	if err := j.checkAdoptable(); err != nil {
		return "", fmt.Errorf("%s: %w", id, err)
	}
	if j.State == lease.Free && j.Resource != "" {
		return "the disk is already offered", nil
	}
	if err := j.checkUnused(ctx); err != nil {
		return "", fmt.Errorf("%s: %w", id, err)
	}
	if o.DryRun {
		return "", nil
	}
	scrub := cmp.Or(o.Scrub, adoptScrub)
	if o.Scrub == "" && j.policy.Reset.Scrubs() {
		scrub = j.policy.Reset.Scrub
	}
	fingerprint, err := t.Host.Touch.ReadFingerprint(ctx, *j.Target)
	now, gone := t.Inventory.Current(ctx, id)
	switch {
	case gone != nil:
		return "", gone
	case err != nil:
		return "", fmt.Errorf("%s: %w: %w", id, ErrBusy, err)
	case now.CordonChanges != j.asked.CordonChanges:
		return "", fmt.Errorf("%s: nothing was done: %w", id, errOutdated)
	case fingerprint == "": // without a fingerprint, metalplug could not notice later writes
		return "", fmt.Errorf("%s: %w: the content of the disk cannot be read now", id, ErrBusy)
	}
	if err := t.Inventory.Adopt(ctx, id, j.asked.Target, scrub, fingerprint); err != nil {
		return "", err
	}
	t.note(j.Status, audit.Adopted, nil, audit.Entry{Method: scrub})
	if j.Cordon != nil {
		return "after you uncordon the disk, metalplug erases it with " + scrub + " and then offers it", nil
	}
	return "the disk is being erased with " + scrub + ", and will then be offered", nil
}

// checkAdoptable returns an error that says why the operator cannot adopt the disk, or nil.
func (j *job) checkAdoptable() error {
	switch {
	case j.Host.Touch.Survey == nil || j.Host.Touch.Prepare == nil:
		return fmt.Errorf("%w: the hardware is simulated from a recording", ErrUnfit)
	case !j.Present:
		return device.ErrGone
	case j.Held():
		return fmt.Errorf("%w: a pod holds the device", ErrBusy)
	case j.Taker == "":
		return fmt.Errorf("%w: no resource matches the device; see metalplugctl why", ErrUnfit)
	case j.Target == nil && j.Reason != "":
		return fmt.Errorf("%w: %s", ErrUnfit, j.Reason)
	case !j.Target.IsDisk():
		return fmt.Errorf("%w: the device is not a disk", ErrUnfit)
	case j.policy.SharesUse():
		return fmt.Errorf("%w: other pods or processes may use the disks of %s", ErrUnfit, j.Taker)
	case j.Target.Medium() == "":
		return fmt.Errorf("%w: the disk has no wwid or serial number, so another disk could be mistaken for it; %s", ErrUnfit, verdict.Remedy(j.Device.ID, j.Target))
	case j.Blocked != "":
		return fmt.Errorf("%w: %s", ErrBusy, j.Blocked)
	}
	return nil
}

// eraseAdopted erases a disk that the operator has adopted.
func (j *job) eraseAdopted(ctx context.Context) error {
	if err := j.checkAdoptable(); err != nil {
		return err
	}
	return j.clearPending(ctx, errand{todo: verdict.EraseAdopted, scrub: j.Evidence.Scrub, limit: maxOrderTime})
}
