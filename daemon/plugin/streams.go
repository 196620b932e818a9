// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"sync"
	"time"
)

// streams are the ListAndWatch streams that kubelets have open.
type streams struct {
	changed chan struct{} // one slot: a stream was opened or has ended

	mu     sync.Mutex
	live   map[*stream]bool
	opened time.Time     // when the last one was opened
	ended  time.Time     // when the last one ended
	lived  time.Duration // how long that one was open
}

// stream is one of them.
type stream struct {
	pid    int32 // of the kubelet
	opened time.Time
	stop   chan struct{} // closed to end it
}

func (s *streams) begin(pid int32) *stream {
	st := &stream{pid: pid, opened: time.Now(), stop: make(chan struct{})}
	s.mu.Lock()
	if s.live == nil {
		s.live = make(map[*stream]bool)
	}
	s.live[st] = true
	s.opened = st.opened
	s.mu.Unlock()
	s.tell()
	return st
}

func (s *streams) over(st *stream) {
	s.mu.Lock()
	delete(s.live, st)
	s.ended = time.Now()
	s.lived = s.ended.Sub(st.opened)
	s.mu.Unlock()
	s.tell()
}

func (s *streams) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// open tells whether there is any.
func (s *streams) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live) > 0
}

// from tells whether one of them belongs to the process.
func (s *streams) from(pid int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.live {
		if st.pid == pid {
			return true
		}
	}
	return false
}

// end ends them all.
func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.live {
		close(st.stop)
		delete(s.live, st)
	}
}

// everSince tells whether one was opened after t.
func (s *streams) everSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.opened.Before(t)
}

// last returns when the last one ended, the zero time if none has, and how long it was open.
func (s *streams) last() (ended time.Time, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended, s.lived
}
