// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"net"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// streams are the ListAndWatch streams that are open. Those of the kubelet that we are registered with count; anybody
// else of uid 0 may have one too.
type streams struct {
	changed chan struct{} // one slot: a stream was opened or has ended

	mu      sync.Mutex
	kubelet int32 // the process whose streams count; 0 also stands for one in a PID namespace that we do not see into
	live    map[*stream]bool
	opened  time.Time           // when the kubelet's last one was opened
	ended   time.Time           // when its last one ended
	lived   time.Duration       // how long that one was open
	silent  bool                // nothing is sent
	round   int                 // the list is sent again for each
	sent    [2]*inventory.Offer // the last two lists, the newest first
}

// stream is one of them.
type stream struct {
	pid    int32 // of whoever opened it
	opened time.Time
	conn   *net.UnixConn // nil: not known
	stop   chan struct{} // closed to end it
	wake   chan struct{} // one slot: round or silent has changed
}

func (s *streams) begin(pid int32, conn *net.UnixConn) *stream {
	st := &stream{pid: pid, opened: time.Now(), conn: conn, stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.mu.Lock()
	if s.live == nil {
		s.live = make(map[*stream]bool)
	}
	s.live[st] = true
	if pid == s.kubelet {
		s.opened = st.opened
	}
	s.mu.Unlock()
	s.tell()
	return st
}

func (s *streams) over(st *stream) {
	s.mu.Lock()
	delete(s.live, st)
	if st.pid == s.kubelet {
		s.ended = time.Now()
		s.lived = s.ended.Sub(st.opened)
	}
	s.mu.Unlock()
	s.tell()
}

func (s *streams) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// expect makes the streams of a process those that count.
func (s *streams) expect(kubelet int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kubelet = kubelet
}

// expected reports whether the streams of a process count.
func (s *streams) expected(pid int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return pid == s.kubelet
}

// adopt makes those streams count of which one was opened after t and is open still, whoever's they are: the kubelet may
// have a process of its own for them. It tells whether there is any.
func (s *streams) adopt(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.live {
		if !st.opened.Before(t) {
			s.kubelet, s.opened = st.pid, st.opened
			return true
		}
	}
	return false
}

// open tells whether the kubelet has any.
func (s *streams) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from(s.kubelet)
}

// openFrom tells whether a process has any.
func (s *streams) openFrom(pid int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from(pid)
}

// from tells whether a process has any. The caller holds mu.
func (s *streams) from(pid int32) bool {
	for st := range s.live {
		if st.pid == pid {
			return true
		}
	}
	return false
}

// mute stops sending lists on all streams, or starts it again.
func (s *streams) mute(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent != silent {
		s.silent = silent
		s.wake()
	}
}

// repeat sends the list on all streams, also if it has not changed.
func (s *streams) repeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
	s.wake()
}

// wake lets each stream look for something to send. The caller holds mu.
func (s *streams) wake() {
	for st := range s.live {
		select {
		case st.wake <- struct{}{}:
		default:
		}
	}
}

// now returns the round, and reports whether a list may be sent.
func (s *streams) now() (round int, send bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.round, !s.silent
}

// sending notes a list that is about to be sent.
func (s *streams) sending(list *inventory.Offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent[0] != list {
		s.sent = [2]*inventory.Offer{list, s.sent[0]}
	}
}

// lastSent returns the last two lists, the newest first.
func (s *streams) lastSent() [2]*inventory.Offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// connections returns those of the streams that count.
func (s *streams) connections() (all []*net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.live {
		if st.pid == s.kubelet && st.conn != nil {
			all = append(all, st.conn)
		}
	}
	return all
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

// everSince tells whether the kubelet has opened one after t.
func (s *streams) everSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.opened.Before(t)
}

// last returns when the kubelet's last one ended, the zero time if none has, and how long it was open.
func (s *streams) last() (ended time.Time, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended, s.lived
}
