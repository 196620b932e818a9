// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/unit"
)

const (
	// lingerPause is how often it is looked whether a process that has outlived its pod is gone.
	lingerPause = 2 * time.Second
	// retryFirst and retryLast bound the time between attempts to do what has gone wrong.
	retryFirst = 10 * time.Second
	retryLast  = 10 * time.Minute
)

// clearLimit returns how long a reset and an erasure may take that no container waits for. The time of a resource that erases
// before a start is bounded by the kubelet's; after one has failed there is time to read a whole disk.
func (c Care) clearLimit() time.Duration {
	if c.AtRelease {
		return max(c.Timeout, time.Second)
	}
	return max(c.Timeout, time.Hour)
}

// errUnkept: a disk is fit, which the next daemon would not know.
var errUnkept = errors.New("that it was erased could be forgotten")

// Run does what follows the release of devices and what precedes their offer, until ctx ends: to each that the inventory
// says is pending, adopted, to be read or to be initialised, again and again until it is done. It waits for what is under
// way.
func (t *Turnover) Run(ctx context.Context, started func()) error {
	started()
	var all sync.WaitGroup
	defer all.Wait()
	under := make(map[string]bool) // IDs of the devices that are being seen to
	over := make(chan string)
	for {
		snapshot, changed := t.Inventory.Snapshot()
		for s := range snapshot.All() {
			id := s.Device.ID
			if s.Todo != inventory.Nothing && !under[id] {
				under[id] = true
				all.Go(func() {
					t.see(ctx, id)
					select {
					case over <- id:
					case <-ctx.Done():
					}
				})
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case id := <-over:
			delete(under, id)
		case <-changed:
		}
	}
}

// see sees to a device until it is not wanting any more or ctx ends.
func (t *Turnover) see(ctx context.Context, id string) {
	if s := t.find(id); s != nil && s.Used && s.Todo == inventory.CleanUp {
		t.note(s, audit.Released, nil, audit.Entry{})
	}
	pause, done, last := retryFirst, progress{}, error(nil)
	for {
		snapshot, changed := t.Inventory.Snapshot()
		s := snapshot.Find(id)
		if s == nil || s.Todo == inventory.Nothing {
			return
		}
		wait := lingerPause
		todo, err := s.Todo, error(nil)
		switch todo {
		case inventory.CleanUp:
			err = t.clear(ctx, id, &done)
		case inventory.EraseAdopted:
			err = t.eraseAdopted(ctx, id)
		case inventory.ReadDisk, inventory.ReadAgain:
			err = t.survey(ctx, id)
		default:
			err = t.initialise(ctx, id)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil: // which the next snapshot shows
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		case errors.Is(err, errFound):
			wait, todo = foundPause, inventory.ReadAgain
		case unlessBusy(err) == nil:
		case errors.Is(err, errUnkept) && errors.Is(last, errUnkept): // only that was asked, which costs little
			wait = retryFirst
		default:
			t.Log.Error(string(todo), "device", id, "resource", s.Resource, "err", err)
			wait, pause = pause, min(2*pause, retryLast)
		}
		last = err
		t.rest(ctx, id, wait, todo)
	}
}

// rest waits, unless ctx ends or the device waits for something else.
func (t *Turnover) rest(ctx context.Context, id string, wait time.Duration, todo inventory.Todo) {
	over := time.After(wait)
	for {
		snapshot, changed := t.Inventory.Snapshot()
		if s := snapshot.Find(id); s == nil || s.Todo != todo {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-changed:
		}
	}
}

// progress is how far a released device has come.
type progress struct {
	renewed Care  // by which it was reset and erased since, which is not done again if what comes after that fails; zero: by none
	failure error // of the last attempt, nil: there is none. Of a device that has another one somebody else has tried something
}

// clear makes a device fit for the next pod after the last one has gone. nil also if a new pod has come meanwhile.
func (t *Turnover) clear(ctx context.Context, id string, done *progress) error {
	if errors.Is(done.failure, errUnkept) { // until that is kept nothing else is asked of anybody
		if err := t.keptErased(ctx); err != nil {
			return err
		}
	}
	s, err := t.Inventory.Current(ctx, id)
	if err != nil {
		return err
	}
	care := t.careOf(cmp.Or(s.Resource, s.Taker))
	s, unlock, err := t.take(ctx, id, care.Method, care.Scrub)
	if err != nil {
		return err
	}
	defer unlock()
	switch {
	case s.Todo != inventory.CleanUp || s.Barred != "" && !care.clears(): // the last: a reload is under way
		return nil
	case !care.mends(s.Order): // it is for whoever tried that
		return nil
	}
	if !care.Open {
		if err := t.left(ctx, s); err != nil {
			return err
		}
	}
	if s.Failure != "" && (done.failure == nil || s.Failure != done.failure.Error()) {
		*done = progress{} // a reset or an erasure by hand has failed
	}
	if s, err = t.Inventory.Begin(ctx, id, lease.Clear, ""); err != nil {
		return err
	}
	outcome := inventory.Outcome{Event: lease.Cleared}
	defer func() { t.Inventory.Worked(id, outcome) }()
	err = t.handBack(ctx, care, s, done)
	switch {
	case err == nil:
		*done = progress{} // whoever leaves it next is another pod
	case ctx.Err() != nil: // we are being stopped: it is done again after the next start
		outcome = inventory.Outcome{}
	case unlessBusy(err) == nil:
		outcome = inventory.Outcome{}
		t.Inventory.Lingers(id, err.Error())
	default:
		if outcome = failed(err); outcome.Err != nil { // of which the operator's attempt is to be made good as well
			outcome.Order = s.Order
		}
		done.failure = outcome.Err
	}
	return err
}

// handBack does to a released device what its resource asks for, and then its vendor's step.
func (t *Turnover) handBack(ctx context.Context, care Care, s *inventory.Status, done *progress) error {
	var p device.Prepared
	if care.renews(done.renewed, s.Failure != "") {
		done.renewed = Care{} // until it is
		limited, cancel := context.WithTimeout(ctx, care.clearLimit()+device.AnswerTime)
		defer cancel()
		var err error
		if p, err = t.restore(limited, care, s); err != nil {
			return err
		}
		t.Inventory.Prepared(s.Device.ID, p)
	}
	done.renewed = care
	// What has gone wrong with a disk may be just that its erasure, also one by hand, could not be kept.
	if p.Erased || s.Failure != "" && s.Target.IsDisk() {
		if err := t.keptErased(ctx); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	return t.unit(limited, s, unit.Release, care.Units.Release)
}

// renews tells whether a released device is to be reset and erased that was so by another care, the zero value: by none.
// A reload may come in between, and ask for more.
func (c Care) renews(by Care, failed bool) bool {
	switch {
	case c.Open:
		return false
	case by == Care{}:
		return c.AtRelease || failed
	}
	return c.AtRelease && (by.Open || !by.AtRelease || by.Method != c.Method || by.Scrub != c.Scrub)
}

// mends tells whether what somebody tried by hand, and could not, is made good by what is done to a released device.
func (c Care) mends(failed lease.Order) bool {
	switch failed {
	case lease.Reset:
		return !c.Open && c.acts()
	case lease.Erase:
		return !c.Open && c.scrubs()
	}
	return true
}

// keptErased makes sure that an erasure is kept in mind before anybody is told of it: whoever uses the disk from then on would
// lose what is on it if, after a crash, it were that of a pod still.
func (t *Turnover) keptErased(ctx context.Context) error {
	if err := t.Inventory.Kept(ctx); err != nil {
		return fmt.Errorf("%w: %w", errUnkept, err)
	}
	return nil
}

// left makes sure that nobody has a released device open, and that its pods have ended.
func (t *Turnover) left(ctx context.Context, s *inventory.Status) error {
	who, err := patiently(ctx, func() (tenants, error) { return t.lookForNext(ctx, s, nil) })
	lingers := who.others
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		lingers = err.Error()
	case who.others != "":
		err = fmt.Errorf("%w: %s", ErrBusy, who.others)
	}
	t.Inventory.Lingers(s.Device.ID, lingers)
	return err
}

// restore resets a device as its resource asks for, and erases a disk if a pod of this node has left what is on it. A disk
// that may hold anything else stays as it is.
func (t *Turnover) restore(ctx context.Context, care Care, s *inventory.Status) (p device.Prepared, err error) {
	w, method := device.Work{Tenant: s.Residue}, care.Method
	switch {
	case !s.Target.IsDisk():
	case s.Order == lease.Erase && care.scrubs():
		w.Scrub, w.ByHand = care.Scrub, true
	case s.Residue && care.scrubs():
		w.Scrub, w.Blank = care.Scrub, s.LeftBlank
	case s.Order == lease.Reset:
		if w.ByHand = true; method == None {
			method = Auto
		}
	case s.Residue:
	case s.Used:
		return p, nil
	default: // it was proven, and its reset has gone wrong
		w.Blank = true
	}
	if w.Method, err = t.method(ctx, s, method); err != nil {
		return p, err
	}
	if w.ByHand {
		s.Fingerprint = "" // the operator meant whatever was there
	}
	return t.touch(ctx, s, w)
}
