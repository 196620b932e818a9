// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
)

const (
	// sliceTime is how long a disk is read at a time: the device is locked for as long, and what was read before is not
	// read again after a restart.
	sliceTime = 8 * time.Second
	// foundPause is how often a disk is asked again whether it still holds what a read has found.
	foundPause = 10 * time.Minute
	// anyController is a method of resetting a disk that hits all disks of its controllers.
	anyController = "nvme-controller"
	// adoptScrub erases adopted disks of a resource that erases none.
	adoptScrub = "zero"
	// adoptLimit bounds one attempt to erase an adopted disk: overwriting a large one takes a day.
	adoptLimit = 48*time.Hour - time.Minute
)

// waits is the reason why a disk is not read at present.
const waits = "the read waits for a pod that uses its controller"

// errWaits: the read of a disk waits until a pod has ended.
var errWaits = fmt.Errorf("%w: %s", ErrBusy, waits)

// errFound: a disk holds data, and is not proven.
var errFound = fmt.Errorf("%w: it holds data", ErrBusy)

// adopted reports whether the operator lets a disk be erased that is not yet.
func adopted(s *inventory.Status) bool { return s.Evidence.Scrub != "" && !s.Held() }

// survey reads the next part of a disk that nothing is known of. While a pod uses another disk of the same controllers,
// it waits. nil also if the disk is not to be read any more.
func (t *Turnover) survey(ctx context.Context, id string) error {
	s, unlock, err := t.take(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if s.Todo != inventory.ReadDisk && s.Todo != inventory.ReadAgain {
		return nil
	}
	paths, err := t.hits(ctx, s, anyController)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(paths, func(path string) bool { other := t.at(path); return other != nil && other.Held() }) {
		t.Inventory.Unread(id, waits)
		return errWaits
	}
	limited, cancel := context.WithTimeout(ctx, sliceTime+device.AnswerTime)
	defer cancel()
	target := *s.Target
	target.Pods = s.Tenants
	found, err := t.Host.Touch.Survey(limited, target, s.Evidence.Read)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && found.Content == "" && found.Read <= s.Evidence.Read && found.Read < found.Size:
		err = errors.New("no progress")
		fallthrough
	case err != nil && found.Read <= s.Evidence.Read:
		why := fmt.Sprintf("the read fails at byte %d: %v", s.Evidence.Read, err)
		if !errors.Is(err, device.ErrUnanswered) && !errors.Is(err, device.ErrInUse) {
			why += "; " + inventory.Way(id, s.Target)
		}
		t.Inventory.Unread(id, why)
		return fmt.Errorf("%s: read it at byte %d: %w", id, s.Evidence.Read, err)
	}
	t.Inventory.Surveyed(id, s.Target, s.Evidence, found)
	switch now, err := t.Inventory.Current(ctx, id); {
	case err != nil:
		return err
	case found.Content != "":
		if s.Evidence.Found == "" {
			t.note(s, audit.Unproven, nil, audit.Entry{Verified: found.Content})
		}
		return errFound
	case now.Evidence.Kind == inventory.Blank:
		t.note(s, audit.Proven, nil, audit.Entry{Verified: fmt.Sprintf("all %d bytes were read and are blank", found.Size)})
	}
	return nil
}

// Adopt lets a disk be erased and offered, whatever is on it, because the operator says so. It is erased by the method of
// its resource unless scrub names another. Adopt returns when that is on disk; [Turnover.Run] erases it. note says that
// there was nothing to do. The errors are [inventory.ErrUnknownDevice], [ErrBusy] and [ErrUnfit].
func (t *Turnover) Adopt(ctx context.Context, id, scrub string) (note string, err error) {
	found := t.find(id)
	if found == nil {
		return "", fmt.Errorf("%s: %w", id, inventory.ErrUnknownDevice)
	}
	s, unlock, err := t.take(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	care := t.careOf(s.Taker)
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
	return "it is being erased by " + scrub + ", and offered after that", nil
}

// adoptable returns why a disk cannot be adopted. as is its newest status, which says who uses it.
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

// eraseAdopted erases a disk that the operator has adopted. nil also if that is not to be done any more.
func (t *Turnover) eraseAdopted(ctx context.Context, id string) error {
	s, err := t.Inventory.Current(ctx, id)
	if err != nil {
		return err
	}
	s, unlock, err := t.take(ctx, id, s.Evidence.Scrub)
	if err != nil {
		return err
	}
	defer unlock()
	care := t.careOf(s.Taker)
	if s.Todo != inventory.EraseAdopted {
		return nil
	}
	err = t.adoptable(care, s, cmp.Or(t.find(id), s))
	if err == nil {
		err = t.left(ctx, s)
	}
	if err == nil {
		err = t.wipeAdopted(ctx, s)
	}
	switch {
	case ctx.Err() != nil: // it is done again after the next start
		return ctx.Err()
	case err != nil:
		t.Inventory.Unread(id, err.Error())
	default:
		t.Inventory.Unread(id, "")
	}
	return err
}

func (t *Turnover) wipeAdopted(ctx context.Context, s *inventory.Status) error {
	id := s.Device.ID
	s, err := t.Inventory.Begin(ctx, id, lease.Clear, "adopted, being erased")
	if err != nil {
		return err
	}
	outcome := inventory.Outcome{}
	defer func() { t.Inventory.Worked(id, outcome) }()
	limited, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	s.Fingerprint = s.Evidence.Fingerprint
	p, err := t.touch(limited, s, device.Work{Scrub: s.Evidence.Scrub, ByHand: true})
	if err != nil {
		if outcome.Touched = errors.As(err, new(halfErased)); outcome.Touched {
			outcome.Fingerprint, _ = t.Host.Touch.Print(ctx, *s.Target)
		}
		outcome.Foreign = errors.Is(err, device.ErrForeign)
		return err
	}
	t.Inventory.Prepared(id, p)
	if err := t.keptErased(ctx); err != nil {
		return err
	}
	t.Inventory.Recovered(id)
	outcome.Event = lease.Cleared
	return nil
}
