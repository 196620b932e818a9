// SPDX-License-Identifier: Apache-2.0

package daemon

import "time"

const (
	// resting is how long nothing is to happen before what was removed is made again: to remove a directory is many steps, and
	// what is made between two of them is in the way of that.
	resting = 200 * time.Millisecond
	// restingMost is how long it waits for that at most, since something may always happen.
	restingMost = 5 * time.Second
	// restingAgain is the time to the next attempt at what could not be made again.
	restingAgain = time.Minute
)

// rest says when it is time to look at what may have been removed. It is for one goroutine.
type rest struct {
	due   <-chan time.Time
	limit time.Time // zero: nothing has happened since the last look
}

// event puts that off a little: more may happen.
func (r *rest) event() {
	if r.limit.IsZero() {
		r.limit = time.Now().Add(restingMost)
	}
	r.due = time.After(min(resting, time.Until(r.limit)))
}

// looked is the last look, after which the next is due in a while though nothing happens.
func (r *rest) looked(whole bool) {
	r.limit, r.due = time.Time{}, time.After(auditing)
	if !whole {
		r.due = time.After(restingAgain)
	}
}
