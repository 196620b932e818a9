// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/metalplug/metalplug/internal/clients"
	"github.com/metalplug/metalplug/internal/liveness"
)

// streams holds the open ListAndWatch streams. Other processes with uid 0 may also open streams, but only the kubelet's
// streams matter. The kubelet is the first client that makes a call after the endpoint begins to register. The kubelet
// requests the options, and opens its stream on the same connection (kubernetes v1.36
// pkg/kubelet/cm/devicemanager/plugin/v1beta1, handler.go).
type streams struct {
	changed chan struct{} // buffer of one, filled when a stream is opened or ends

	mu      sync.Mutex
	kubelet *clients.Client // nil in tests that make calls without a connection
	waiting bool            // the next client that makes a call is the kubelet
	live    map[*stream]bool
	// when the kubelet last opened a stream; set to zero when the endpoint begins to register
	opened time.Time
	ended  time.Time     // when the kubelet's last stream ended
	lived  time.Duration // how long the stream that ended was open
	silent bool          // the endpoint sends no lists
	round  int           // incremented when the list must be sent again
	sent   sentList      // last list that was sent to the kubelet
}

// sentList describes a list that was sent to the kubelet.
type sentList struct {
	number     uint64   // [inventory.Offer.Listed]
	healthy    bool     // the list contains a healthy device
	checkpoint identity // the kubelet's checkpoint before the list was sent
}

// stream is an open ListAndWatch stream.
type stream struct {
	client *clients.Client
	opened time.Time
	stop   chan struct{} // closed to end the stream
	wake   chan struct{} // buffer of one, filled when round has changed
}

// expect records that the next client that makes a call will be the kubelet.
func (s *streams) expect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kubelet, s.waiting, s.opened = nil, true, time.Time{}
}

// noteClient records that a client has made a call. If the kubelet is expected, this client is the kubelet.
func (s *streams) noteClient(c *clients.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting {
		s.kubelet, s.waiting = c, false
	}
}

func (s *streams) add(c *clients.Client) *stream {
	s.noteClient(c)
	st := &stream{client: c, opened: time.Now(), stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.mu.Lock()
	if s.live == nil {
		s.live = make(map[*stream]bool)
	}
	s.live[st] = true
	if c == s.kubelet {
		s.opened = st.opened
	}
	s.mu.Unlock()
	liveness.Poke(s.changed)
	return st
}

func (s *streams) remove(st *stream) {
	s.mu.Lock()
	delete(s.live, st)
	if st.client == s.kubelet {
		s.ended = time.Now()
		s.lived = s.ended.Sub(st.opened)
	}
	s.mu.Unlock()
	liveness.Poke(s.changed)
}

// lastStream reports whether the kubelet has opened a stream since the endpoint began to register. lastStream also returns when
// the last stream ended, and how long that stream was open.
func (s *streams) lastStream() (any bool, ended time.Time, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.opened.IsZero(), s.ended, s.lived
}

// setSilent stops or resumes sending lists on all streams. When sending resumes, the newest list is sent.
func (s *streams) setSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
	s.round++
	for st := range s.live {
		liveness.Poke(st.wake)
	}
}

// sendState returns the current round, and reports whether a list may be sent.
func (s *streams) sendState() (round int, send bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.round, !s.silent
}

// recordSending records a list that is about to be sent on the kubelet's stream. Streams of other clients do not count.
func (s *streams) recordSending(st *stream, list sentList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.client == s.kubelet {
		s.sent = list
	}
}

// lastSent returns the last list that was sent to the kubelet.
func (s *streams) lastSent() sentList {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// client returns the kubelet as a client if it has an open stream, and nil otherwise.
func (s *streams) client() *clients.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.live {
		if st.client == s.kubelet {
			return s.kubelet
		}
	}
	return nil
}

// closeAll ends all streams.
func (s *streams) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.live {
		close(st.stop)
		delete(s.live, st)
	}
}

// unauthorizedClient returns the newest client if it must be disconnected. Only uid 0 and metalplugd's own uid may be clients.
func unauthorizedClient(open []*clients.Client) *clients.Client {
	if newest := open[len(open)-1]; newest.Uid != 0 && newest.Uid != uint32(os.Geteuid()) {
		return newest
	}
	return nil
}

// clientOf returns the client that made the current call, or nil.
func clientOf(ctx context.Context) *clients.Client {
	if p, ok := peer.FromContext(ctx); ok {
		c, _ := p.Addr.(*clients.Client)
		return c
	}
	return nil
}
