// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// request is a function that runs in the goroutine that owns the inventory.
type request func(*loop)

// requests contains the requests that the loop has not run yet. Their number has no limit, so a post never waits for the
// loop. The methods are safe for concurrent use.
type requests struct {
	wake    chan struct{} // has a buffer of one, which is full while requests are waiting
	done    chan struct{} // closed when the loop has ended, so that no caller waits forever
	mu      sync.Mutex
	waiting []request
}

// take removes and returns the waiting requests, oldest first.
func (q *requests) take() []request {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.waiting
	q.waiting = nil
	return all
}

// post queues a request for the loop. It does not wait. After the loop has ended, the request never runs.
func (q *requests) post(r request) {
	q.mu.Lock()
	q.waiting = append(q.waiting, r)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// later posts a request after a delay. The caller may stop the timer to cancel the request.
func (q *requests) later(pause time.Duration, r request) *time.Timer {
	return time.AfterFunc(pause, func() { q.post(r) })
}

// about posts a request about a device. The request does not run if the device is unknown by then. The function about does
// not wait.
func (q *requests) about(id string, r func(*loop, *entry)) {
	q.post(func(l *loop) {
		if e := l.entries[id]; e != nil {
			r(l, e)
		}
	})
}

// ask posts a request, and returns when the loop has run it. If the function ask returns an error, the loop never runs the
// request.
func (q *requests) ask(ctx context.Context, r request) (ended error) {
	var once sync.Once // decides whether the request runs or the wait ends
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
