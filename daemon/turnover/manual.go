// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"errors"
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
	j, err := t.take(ctx, id)
	if err != nil {
		return err
	}
	defer inventory.Settled(ctx, t.Inventory, id)
	defer j.finish()
	e := errand{order: lease.Reset, scrub: o.Scrub, limit: maxOrderTime}
	if o.Scrub != "" {
		e.order = lease.Erase
	}
	if err = j.checkOrder(e); err == nil {
		err = j.checkUnused(ctx)
	}
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
	if err := j.checkOrder(errand{todo: verdict.EraseAdopted}); err != nil {
		return "", fmt.Errorf("%s: %w", id, err)
	}
	if j.State == lease.Free && j.Resource != "" {
		return "the disk is already in a device list; to erase the disk, run \"metalplugctl reset " + id + " --scrub METHOD\"", nil
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
	if err == nil && fingerprint == "" { // without a fingerprint, metalplug could not notice later writes
		err = errors.New("the content of the disk cannot be read now")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %w", id, ErrBusy, err)
	}
	err = t.Inventory.Adopt(ctx, id, scrub, fingerprint, func(now *inventory.Current) error { return j.checkUnchanged(now, verdict.Nothing) })
	if err != nil {
		return "", fmt.Errorf("%s: nothing was done: %w", id, err)
	}
	t.note(j.Status, audit.Adopted, nil, audit.Entry{Method: scrub})
	if j.Cordon != nil {
		return "after you uncordon the disk, metalplug erases it with " + scrub + " and then offers it", nil
	}
	return "the disk is being erased with " + scrub + ", and will then be offered", nil
}

// checkOrder returns an error that says why metalplug cannot do an errand that the operator has ordered, or nil.
func (j *job) checkOrder(e errand) error {
	adopts := e.todo == verdict.EraseAdopted
	erases := adopts || e.order == lease.Erase
	switch {
	case j.Host.Touch.Prepare == nil:
		return fmt.Errorf("%w: the hardware is simulated from a recording", ErrUnfit)
	case !j.Present:
		return device.ErrGone
	case j.Held():
		return fmt.Errorf("%w: a pod holds the device", ErrBusy)
	case adopts && j.Taker == "":
		return fmt.Errorf("%w: no resource matches the device; see metalplugctl why", ErrUnfit)
	case erases && j.Blocked != "":
		return fmt.Errorf("%w: %s", ErrBusy, j.Blocked)
	case erases && !j.Target.IsDisk():
		return fmt.Errorf("%w: the device is not a disk", ErrUnfit)
	case adopts && j.policy.SharesUse():
		return fmt.Errorf("%w: other pods or processes may use the disks of %s", ErrUnfit, j.Taker)
	case adopts && j.Target.Medium() == "":
		return fmt.Errorf("%w: the disk has no wwid or serial number, so another disk could be mistaken for it; %s", ErrUnfit, verdict.Remedy(j.Device.ID, j.Target))
	}
	return nil
}

// eraseAdopted erases a disk that the operator has adopted.
func (j *job) eraseAdopted(ctx context.Context) error {
	e := errand{todo: verdict.EraseAdopted, scrub: j.Evidence.Scrub, limit: maxOrderTime}
	if err := j.checkOrder(e); err != nil {
		return err
	}
	return j.clearPending(ctx, e)
}
