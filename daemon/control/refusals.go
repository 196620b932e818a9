// SPDX-License-Identifier: Apache-2.0

package control

import (
	"sync"
	"time"
)

// refusalsKept is how many refusals are remembered.
const refusalsKept = 16

// refusals are the last containers that did not get their devices.
type refusals struct {
	mu   sync.Mutex
	last []Refusal // oldest first
}

// add remembers one; what is repeated, as a container that is tried again and again, is remembered once.
func (r *refusals) add(next Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.last); n > 0 && r.last[n-1].Resource == next.Resource && r.last[n-1].Reason == next.Reason {
		r.last = r.last[:n-1]
	}
	if len(r.last) == refusalsKept {
		r.last = append([]Refusal(nil), r.last[1:]...)
	}
	r.last = append(r.last, next)
}

// list returns a copy of them all.
func (r *refusals) list() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Refusal{}, r.last...)
}

// refused notes that a container did not get its devices.
func (s *Server) refused(resource, call string, err error) {
	s.refusals.add(Refusal{Time: time.Now().UTC(), Resource: resource, Call: call, Reason: err.Error()})
}
