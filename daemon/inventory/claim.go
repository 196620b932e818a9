// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/lease"
)

// ErrHeld means that another tenant holds a device.
var ErrHeld = errors.New("it is held")

// Claim assigns devices to a claim, and returns once the assignment is in the state file. The claim may already have some
// of the devices. All others must be free, healthy, and belong to a resource that DRA serves. The error is
// [ErrUnknownDevice], [ErrHeld], or another reason. After an error, the claim has only the devices that it had before.
func (i *Inventory) Claim(ctx context.Context, claim api.ClaimRef, ids []string) error {
	var given []*entry
	return changeDurably(ctx, i, func(l *loop) error {
		for _, id := range ids {
			if e := l.entries[id]; e == nil || e.claim.UID != claim.UID {
				if err := l.claimable(id); err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
				given = append(given, e)
			}
		}
		for _, e := range given {
			e.claim = claim
			e.noteGiven()
			e.ensureWindow().given = true                     // work for an earlier tenant may be in progress
			_ = l.apply(e, lease.Event{Name: lease.Allocate}) // every state allows this event
		}
		return nil
	}, func(l *loop) {
		for _, e := range given {
			l.unclaim(e)
		}
	})
}

// claimable returns why a device cannot be assigned to a claim now, or nil.
func (l *loop) claimable(id string) error {
	s := l.current(id)
	if s == nil {
		return ErrUnknownDevice
	}
	rule := l.rule(s.Resource)
	switch {
	case s.Claim != api.ClaimRef{}:
		return fmt.Errorf("%w by claim %s", ErrHeld, s.Claim)
	case s.Held():
		return fmt.Errorf("%w by a pod", ErrHeld)
	case rule == nil || rule.Serve == "":
		return errors.New(`DRA does not serve its resource; write serve = "dra"`)
	case !s.Healthy:
		return fmt.Errorf("unhealthy: %s", s.Reason)
	case s.Barred != "":
		return fmt.Errorf("unhealthy: %s", s.Barred)
	}
	return nil
}

// Ready reports whether the device is prepared for containers that use the claim.
func (s *Status) Ready(claim string) bool {
	return s.Claim.UID == claim && s.State == lease.InUse && s.Hold == lease.Started
}

// Unclaim releases the devices of the claim with the given UID, and returns once the release is in the state file. It
// returns no error if the claim has no devices.
func (i *Inventory) Unclaim(ctx context.Context, uid string) error {
	if err := i.ask(ctx, func(l *loop) {
		for _, e := range l.entries {
			if e.claim.UID == uid {
				l.unclaim(e)
			}
		}
	}); err != nil {
		return err
	}
	return i.Kept(ctx)
}

func (l *loop) unclaim(e *entry) {
	e.claim = api.ClaimRef{}
	l.free(e)
	l.saveSoon(e)
}
