// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// request is a call that the goroutine which owns the inventory carries out for another.
type request func(*loop)

// requests are those that the loop has not carried out yet. There is no limit, so that a post never waits for the loop. The
// methods are safe for concurrent use.
type requests struct {
	wake    chan struct{} // one slot, full while there are any
	mu      sync.Mutex
	waiting []request
}

func (q *requests) add(r request) {
	q.mu.Lock()
	q.waiting = append(q.waiting, r)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns the waiting requests, the oldest first, and leaves none.
func (q *requests) take() []request {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.waiting
	q.waiting = nil
	return all
}

// post asks the loop to carry out a request. It does not wait. After the end of the loop, nothing carries it out.
func (i *Inventory) post(r request) { i.requests.add(r) }

// later posts a request after a pause. The timer may be stopped until then.
func (i *Inventory) later(pause time.Duration, r request) *time.Timer {
	return time.AfterFunc(pause, func() { i.post(r) })
}

// about posts a request about a device, which must be known by then. It does not wait.
func (i *Inventory) about(id string, r func(*loop, *entry)) {
	i.post(func(l *loop) {
		if e := l.entries[id]; e != nil {
			r(l, e)
		}
	})
}

// ask asks the loop to carry out a request, and returns when it has. With an error the loop never carries it out.
func (i *Inventory) ask(ctx context.Context, r request) (ended error) {
	var once sync.Once // the request, or the end of the wait for it
	answered := make(chan struct{})
	i.post(func(l *loop) {
		once.Do(func() {
			r(l)
			close(answered)
		})
	})
	select {
	case <-answered:
	case <-i.done:
		once.Do(func() { ended = errStopped })
	case <-ctx.Done():
		once.Do(func() { ended = fmt.Errorf("wait for the inventory: %w", ctx.Err()) })
	}
	return ended
}
