// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
)

const (
	// adoptScrub erases adopted disks of a resource that erases none.
	adoptScrub = "zero"
	// adoptLimit bounds one attempt to erase an adopted disk. Overwriting a large one takes a day.
	adoptLimit = 48*time.Hour - time.Minute
)

// ByHand resets a device that no pod holds, or with a scrub erases it, with the same checks. It blocks until that is
// done or ctx ends. The errors are [inventory.ErrUnknownDevice], [ErrBusy], [ErrUnfit] and those of the work.
func (t *Turnover) ByHand(ctx context.Context, id, scrub string) error {
	s := t.find(id)
	if s == nil {
		return fmt.Errorf("%s: %w", id, inventory.ErrUnknownDevice)
	}
	if t.Host.Touch.Prepare == nil {
		return fmt.Errorf("%s: %w: the hardware is a recording, in which nothing can be touched", id, ErrUnfit)
	}
	care := t.careOf(s)
	unlock, err := t.take(ctx, id, care.Method, scrub)
	if err != nil {
		return err
	}
	defer unlock()
	if s, err = t.Inventory.Current(ctx, id); err != nil {
		return err
	}
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
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	outcome := inventory.Outcome{}
	defer func() { t.Inventory.Worked(id, outcome) }()
	if err := t.carryOut(ctx, care, s, scrub); err != nil {
		switch {
		case errors.Is(err, ErrUnfit) && !errors.Is(err, device.ErrForeign): // nothing was done
		case errors.Is(err, errUnkept):
			outcome = failed(err, lease.NoOrder)
		default:
			outcome = failed(fmt.Errorf("%s by hand: %w", order, err), order)
		}
		return err
	}
	t.Inventory.Recovered(id)
	// A reset alone is not enough for a resource that erases after a pod or runs a vendor's unit.
	enough := !s.Used || care.Units.Release == "" && (scrub != "" || !care.AtRelease || !care.scrubs())
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

// carryOut resets a device, or erases it with any content, by the operator's order.
func (t *Turnover) carryOut(ctx context.Context, care Care, s *inventory.Status, scrub string) error {
	s.Fingerprint, s.Written = "", nil // whatever is there by now
	w := lease.Work{Erase: scrub != "", Reset: scrub == "", ByHand: true}
	if s.Residue {
		w.Content = lease.OfTenant
	}
	if care.Scrub = scrub; care.Method == None {
		care.Method = Auto
	}
	if w.Reset {
		if method, err := t.method(ctx, s, care.Method); err != nil {
			return err
		} else if method == "" {
			return fmt.Errorf("%s: %w: no method of its class fits it as it stands: name one in [resource.reset]", s.Device.ID, ErrUnfit)
		}
	}
	p, err := t.touch(ctx, care, s, w)
	if err != nil {
		return err
	}
	t.Inventory.Prepared(s.Device.ID, p)
	if scrub == "" {
		return nil
	}
	return t.keptErased(ctx)
}

// Adopt allows to erase a disk with any content and to offer it, by the operator's order. The method is that of its resource
// unless scrub names another. Adopt returns when the state file has the order. [Turnover.Run] erases the disk. note is for
// people, and says so if there was nothing to do. The errors are [inventory.ErrUnknownDevice], [ErrBusy] and [ErrUnfit].
func (t *Turnover) Adopt(ctx context.Context, id, scrub string) (note string, err error) {
	found := t.find(id)
	if found == nil {
		return "", fmt.Errorf("%s: %w", id, inventory.ErrUnknownDevice)
	}
	unlock, err := t.take(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	s, err := t.Inventory.Current(ctx, id)
	if err != nil {
		return "", err
	}
	care := t.careOf(s)
	if err := t.adoptable(care, s, found); err != nil {
		return "", fmt.Errorf("%s: %w", id, err)
	}
	if kind := s.Evidence.Kind; kind != "" && s.State == lease.Free && s.Resource != "" {
		return "it is offered already: its evidence is " + kind, nil
	}
	if err := t.left(ctx, s); err != nil {
		return "", fmt.Errorf("%s: %w", id, err)
	}
	if scrub == "" && care.scrubs() {
		scrub = care.Scrub
	}
	scrub = cmp.Or(scrub, adoptScrub)
	print, err := t.Host.Touch.Print(ctx, *s.Target)
	if err != nil {
		return "", fmt.Errorf("%s: %w: %w", id, ErrBusy, err)
	}
	if err := t.Inventory.Adopt(ctx, id, s.Target, scrub, print); err != nil {
		return "", err
	}
	t.note(s, audit.Adopted, nil, audit.Entry{Method: scrub})
	if s.Cordon != nil {
		return "it is erased by " + scrub + " and offered once you uncordon it", nil
	}
	return "it is being erased by " + scrub + ", and offered after that", nil
}

// adoptable returns why a disk cannot be adopted. as is its newest status, which says which process uses it.
func (t *Turnover) adoptable(care Care, s, as *inventory.Status) error {
	switch {
	case t.Host.Touch.Survey == nil || t.Host.Touch.Prepare == nil:
		return fmt.Errorf("%w: the hardware is simulated from a recording", ErrUnfit)
	case !s.Present:
		return device.ErrGone
	case s.Held():
		return fmt.Errorf("%w: a pod holds it", ErrBusy)
	case s.Taker == "":
		return fmt.Errorf("%w: no resource takes it; see metalplugctl why", ErrUnfit)
	case s.Target == nil && as.Reason != "":
		return fmt.Errorf("%w: %s", ErrUnfit, as.Reason)
	case !s.Target.IsDisk():
		return fmt.Errorf("%w: it is not a disk", ErrUnfit)
	case care.Open:
		return fmt.Errorf("%w: others may use the disks of %s", ErrUnfit, s.Taker)
	case s.Target.Medium() == "":
		return fmt.Errorf("%w: no wwid or serial number: nothing would tell another disk from it; %s", ErrUnfit, inventory.Way(s.Device.ID, s.Target))
	case s.Blocked != "":
		return fmt.Errorf("%w: %s", ErrBusy, s.Blocked)
	}
	return nil
}

// eraseAdopted erases a disk that the operator has adopted.
func (t *Turnover) eraseAdopted(ctx context.Context, s *inventory.Status) error {
	id := s.Device.ID
	err := t.adoptable(t.careOf(s), s, cmp.Or(t.find(id), s))
	if err == nil {
		err = t.left(ctx, s)
	}
	if err == nil {
		err = t.wipeAdopted(ctx, id)
	}
	why := ""
	switch {
	case ctx.Err() != nil: // the next daemon does it again
		return ctx.Err()
	case err != nil:
		why = err.Error()
	}
	t.Inventory.Unread(id, why)
	return err
}

func (t *Turnover) wipeAdopted(ctx context.Context, id string) error {
	s, err := t.Inventory.Begin(ctx, id, lease.Clear, "adopted, being erased")
	if err != nil {
		return err
	}
	outcome := inventory.Outcome{}
	defer func() { t.Inventory.Worked(id, outcome) }()
	limited, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	s.Fingerprint = s.Evidence.Fingerprint
	p, err := t.touch(limited, Care{Scrub: s.Evidence.Scrub}, s, lease.Work{Erase: true, ByHand: true})
	if err != nil {
		if outcome.Touched = errors.As(err, new(halfErased)); outcome.Touched {
			outcome.Fingerprint, _ = t.Host.Touch.Print(ctx, *s.Target)
		}
		outcome.Foreign = errors.Is(err, device.ErrForeign)
		return err
	}
	t.Inventory.Prepared(id, p)
	if err := t.keptErased(ctx); err != nil {
		outcome = failed(err, lease.NoOrder) // after a crash it would be erased once more
		return err
	}
	t.Inventory.Recovered(id)
	outcome.Event = lease.Cleared
	return nil
}
