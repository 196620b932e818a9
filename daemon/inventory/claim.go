// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// ErrHeld means that another tenant holds the device.
var ErrHeld = errors.New("the device is held")

// ErrClearing means that metalplug is still resetting or erasing the device after its last tenant.
var ErrClearing = errors.New(verdict.BeingCleared)

// Claim assigns devices to a claim. To wait until the assignment is in the state file, call [Inventory.WaitSaved]. The claim may
// already have some of the devices. All other devices in the call must be healthy and belong to a resource that is served through
// DRA. Each of these devices must be free, or held by fewer claims than the resource has shares. The error may be
// [ErrUnknownDevice], [ErrHeld] or [ErrClearing]. Any other error describes why a device is unsuitable. Claim returns ErrClearing
// only if no device is unsuitable. After an error, the claim has only the devices that it had before.
func (i *Inventory) Claim(ctx context.Context, claim api.ClaimRef, ids []string) error {
	return i.postAndWait(ctx, func(l *loop) error {
		var refusal error
		for _, id := range ids {
			if err := l.checkClaimable(id, claim.UID); err != nil && (refusal == nil || errors.Is(refusal, ErrClearing)) {
				refusal = fmt.Errorf("%s: %w", id, err)
			}
		}
		for _, id := range ids {
			if e := l.entries[id]; refusal == nil && !e.Claims.Has(claim.UID) {
				e.noteGiven()
				e.Claims = append(slices.Clip(e.Claims), lease.Claim{ClaimRef: claim})
				e.work.givenSince = true                          // the flag matters if work for an earlier tenant is in progress
				_ = l.apply(e, lease.Event{Name: lease.Allocate}) // every state allows this event
			}
		}
		return refusal
	})
}

// checkClaimable returns why a device cannot be assigned to a claim now, or nil. The claim may already have the device. If the
// number of shares was reduced, the claim must wait until enough other claims have ended, unless the device is already prepared
// for it.
func (l *loop) checkClaimable(id, claim string) error {
	s := l.current(id)
	if s == nil {
		return ErrUnknownDevice
	}
	rule, others := l.rule(s.Resource), s.Claims.Without(claim)
	switch {
	case s.Claims.Ready(claim):
		return nil
	case len(others) > 0 && (rule == nil || len(others) >= rule.Claims):
		return fmt.Errorf("%w by claim %s", ErrHeld, others[0])
	case s.Claims.Has(claim):
		return nil
	case s.Held() && len(others) == 0:
		return fmt.Errorf("%w by a pod", ErrHeld)
	case s.Resource == "" && s.Reason != "": // not offered, for example because a disk is unproven or in use
		return errors.New(s.Reason)
	case rule == nil || rule.Claims == 0:
		return errors.New(`the device's resource is not served through DRA; write serve = "dra"`)
	case s.Reason == verdict.BeingCleared:
		return ErrClearing
	case s.Cordon != nil:
		return fmt.Errorf("%s -> metalplugctl uncordon %s", s.Reason, id)
	case !s.Healthy, s.Barred != "" && len(others) == 0: // a device is cleaned up only after its last claim has ended
		return errors.New(cmp.Or(s.Reason, s.Barred))
	}
	return nil
}

// Unclaim releases the devices of the claim with the given UID, and returns once the release is in the state file. Unclaim
// returns no error if the claim has no devices.
func (i *Inventory) Unclaim(ctx context.Context, uid string) error {
	err := i.postAndWait(ctx, func(l *loop) error {
		for _, e := range l.entries {
			if e.Claims.Has(uid) {
				// The lease of a shared device ends only when its last claim is released.
				if e.Claims = e.Claims.Without(uid); len(e.Claims) == 0 {
					l.recordFree(e)
				}
				l.saveSoon(e)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return i.WaitSaved(ctx)
}
