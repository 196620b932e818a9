// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
)

// ByHand resets a device that no pod holds, or with a scrub erases it, with the same checks. It blocks until that is
// done or ctx ends. The errors are [inventory.ErrUnknownDevice], [ErrBusy], [ErrUnfit] and what went wrong.
func (t *Turnover) ByHand(ctx context.Context, id, scrub string) error {
	found := t.find(id)
	if found == nil {
		return fmt.Errorf("%s: %w", id, inventory.ErrUnknownDevice)
	}
	if t.Host.Touch.Prepare == nil {
		return fmt.Errorf("%s: %w: the hardware is a recording, in which nothing can be touched", id, ErrUnfit)
	}
	care := t.careOf(cmp.Or(found.Resource, found.Taker))
	s, unlock, err := t.take(ctx, id, care.Method, scrub)
	if err != nil {
		return err
	}
	defer unlock()
	switch {
	case !s.Present:
		return fmt.Errorf("%s: %w", id, device.ErrGone)
	case s.Held():
		return fmt.Errorf("%s: %w: a pod holds it", id, ErrBusy)
	}
	if err := t.left(ctx, s); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	reason, order := "being reset by hand", lease.Reset
	if scrub != "" {
		reason, order = "being erased by hand", lease.Erase
	}
	if s, err = t.Inventory.Begin(ctx, id, lease.Clear, reason); err != nil {
		return err
	}
	outcome := inventory.Outcome{}
	defer func() { t.Inventory.Worked(id, outcome) }()
	p, done, err := t.once(ctx, care, s, scrub)
	switch {
	case errors.Is(err, ErrUnfit) && !errors.Is(err, device.ErrForeign): // nothing was done
		return err
	case err != nil:
		if outcome = failed(err); outcome.Err != nil {
			outcome.Err, outcome.Order = fmt.Errorf("%s by hand: %w", order, outcome.Err), order
		}
		return err
	case !done:
		return fmt.Errorf("%s: %w: no method of its class fits it as it stands: name one in [resource.reset]", id, ErrUnfit)
	}
	t.Inventory.Prepared(id, p)
	if scrub != "" {
		if err := t.keptErased(ctx); err != nil {
			outcome = failed(err)
			return err
		}
	}
	t.Inventory.Recovered(id)
	// A reset alone is not what a resource waits for that is erased when a pod has left it.
	enough := scrub != "" || !s.Used || !care.AtRelease || !care.scrubs()
	enough = enough && (!s.Used || care.Units.Release == "") // nor is that of the vendor's step
	// Nor does it make good for an erasure.
	mended := scrub != "" || s.Order == lease.Reset
	switch {
	case enough && (mended || s.Order == lease.NoOrder):
		outcome.Event = lease.Cleared
	case mended:
		outcome.Event = lease.Mended
	}
	return nil
}

func (t *Turnover) once(ctx context.Context, care Care, s *inventory.Status, scrub string) (p device.Prepared, done bool, err error) {
	w := device.Work{Scrub: scrub, Tenant: s.Residue, ByHand: true}
	if scrub == "" {
		method := care.Method
		if method == None {
			method = Auto
		}
		if w.Method, err = t.method(ctx, s, method); err != nil || w.Method == "" {
			return p, false, err
		}
	}
	s.Fingerprint = "" // the operator means whatever is there
	p, err = t.touch(ctx, s, w)
	return p, true, err
}
