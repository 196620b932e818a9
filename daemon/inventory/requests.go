// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/metalplug/metalplug/internal/liveness"
)

// request is a function that runs in the goroutine that owns the inventory.
type request func(*loop)

// requests contains the requests that the loop has not run yet. The number of requests has no limit, so a post never waits for
// the loop. The methods are safe for concurrent use.
type requests struct {
	wake    chan struct{} // has a buffer of one, which is full while requests are waiting
	done    chan struct{} // closed when the loop has ended, so that no caller waits forever
	mu      sync.Mutex
	waiting []request
}

// carryOut runs the requests that are waiting, oldest first.
func (l *loop) carryOut() {
	l.mu.Lock()
	all := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, r := range all {
		r(l)
	}
}

// post queues a request for the loop. post does not wait. If the loop has already ended, the request never runs.
func (q *requests) post(r request) {
	q.mu.Lock()
	q.waiting = append(q.waiting, r)
	q.mu.Unlock()
	liveness.Poke(q.wake)
}

// postLater posts a request after a delay.
func (q *requests) postLater(pause time.Duration, r request) {
	time.AfterFunc(pause, func() { q.post(r) })
}

// postAbout posts a request for one device. If the device is unknown when the loop reaches the request, the request does not
// run. The caller does not wait.
func (q *requests) postAbout(id string, r func(*loop, *entry)) {
	q.post(func(l *loop) {
		if e := l.entries[id]; e != nil {
			r(l, e)
		}
	})
}

// postAndWait posts a request and returns its error once the loop has run it. If the inventory stops or ctx ends first,
// postAndWait returns another error, and the loop never runs the request.
func (q *requests) postAndWait(ctx context.Context, r func(*loop) error) (err error) {
	var once sync.Once // either the request runs, or postAndWait gives up, but never both
	answered := make(chan struct{})
	q.post(func(l *loop) {
		once.Do(func() {
			err = r(l)
			close(answered)
		})
	})
	select {
	case <-answered:
	case <-q.done:
		once.Do(func() { err = errStopped })
	case <-ctx.Done():
		once.Do(func() { err = fmt.Errorf("wait for the inventory: %w", ctx.Err()) })
	}
	return err
}

// Current returns the newest state of a device. The state contains every change that was posted before the call, even if no
// snapshot shows the change yet. Current waits for the goroutine that owns the inventory. The error is [ErrUnknownDevice] or the
// context's error.
func (i *Inventory) Current(ctx context.Context, id string) (s *Current, err error) {
	err = i.postAndWait(ctx, func(l *loop) error {
		if s = l.current(id); s == nil {
			return fmt.Errorf("%s: %w", id, ErrUnknownDevice)
		}
		return nil
	})
	return s, err
}

// current returns the newest state of a device. Unlike the status in a snapshot, this state includes the result of the last
// inspection even while metalplug is working on the device.
func (l *loop) current(id string) *Current {
	e := l.entries[id]
	if e == nil || e.status == nil {
		return nil
	}
	s := &Current{Status: l.judge(e, time.Now()), Fingerprint: e.Fingerprint, CordonChanges: l.cordonCount[id]}
	s.Observation = e.observation()
	if sectors := e.Wrote.Sectors; e.Wrote.In == l.evidence.Presence(e.Disk) {
		s.Written = &sectors
	}
	f := l.facts(e)
	hostData := f.Rule != nil && f.Rule.AllowInUse && !l.podData[id] // pods may get the host's data, but not a pod's
	s.Init, s.Proven = f.Init(), hostData || f.Unused()
	return s
}

// WaitSaved waits until every change that was posted before the call is on disk. The error comes from the write or from ctx.
func (i *Inventory) WaitSaved(ctx context.Context) error {
	if err := i.postAndWait(ctx, func(l *loop) error { l.save(); return nil }); err != nil {
		return err
	}
	return i.Store.Flush(ctx)
}

// changeDurably calls change() and returns nil once the change is on disk. After an error, nothing has changed. Either change()
// has returned this error, or the change could not be saved. In the second case, changeDurably has called undo().
func changeDurably(ctx context.Context, i *Inventory, change func(*loop) error, undo func(*loop)) error {
	if err := i.postAndWait(ctx, change); err != nil {
		return err
	}
	if err := i.WaitSaved(ctx); err != nil {
		_ = i.postAndWait(context.WithoutCancel(ctx), func(l *loop) error { undo(l); return nil })
		return fmt.Errorf("not saved: %w", err)
	}
	return nil
}

// Started waits until a snapshot shows that a container was started with each of these devices. All later calls to Allocate see
// this snapshot or a newer one. Without devices, Started waits for the first snapshot. Started returns an error if ctx or the
// inventory ends first.
func (i *Inventory) Started(ctx context.Context, ids ...string) error {
	return i.Await(ctx, func(s *Snapshot) bool {
		return s.Version > 0 && !slices.ContainsFunc(ids, func(id string) bool { d := s.Find(id); return d != nil && !d.Used })
	})
}

// Await waits until wanted() returns true for the newest snapshot. Await returns an error if ctx or the inventory ends first.
func (i *Inventory) Await(ctx context.Context, wanted func(*Snapshot) bool) error {
	for {
		snapshot, changed := i.Snapshot()
		if wanted(snapshot) {
			return nil
		}
		select {
		case <-changed:
		case <-i.done:
			return errStopped
		case <-ctx.Done():
			return fmt.Errorf("wait for the inventory: %w", ctx.Err())
		}
	}
}
