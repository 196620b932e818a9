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
	done    chan struct{} // closed when the loop has ended, so that no caller waits for it
	mu      sync.Mutex
	waiting []request
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
func (q *requests) post(r request) {
	q.mu.Lock()
	q.waiting = append(q.waiting, r)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// later posts a request after a pause. The timer may be stopped until then.
func (q *requests) later(pause time.Duration, r request) *time.Timer {
	return time.AfterFunc(pause, func() { q.post(r) })
}

// about posts a request about a device, which must be known by then. It does not wait.
func (q *requests) about(id string, r func(*loop, *entry)) {
	q.post(func(l *loop) {
		if e := l.entries[id]; e != nil {
			r(l, e)
		}
	})
}

// ask asks the loop to carry out a request, and returns when it has. With an error the loop never carries it out.
func (q *requests) ask(ctx context.Context, r request) (ended error) {
	var once sync.Once // the request, or the end of the wait for it
	answered := make(chan struct{})
	q.post(func(l *loop) {
		once.Do(func() {
			r(l)
			close(answered)
		})
	})
	select {
	case <-answered:
	case <-q.done:
		once.Do(func() { ended = errStopped })
	case <-ctx.Done():
		once.Do(func() { ended = fmt.Errorf("wait for the inventory: %w", ctx.Err()) })
	}
	return ended
}
