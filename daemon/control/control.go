// SPDX-License-Identifier: Apache-2.0

// Package control is the control socket: what the daemon knows and does, as JSON over HTTP/1.1 on a unix socket, and
// what an operator may change.
//
// Any client that may open the socket may read. Only uid 0 may change anything, as the kernel tells of the peer. No client can
// hold anything up. At most 64 of each user are served at once. Each answer is made of an immutable snapshot, and a client that does not
// speak or does not read is cut off. Nothing is queued for a client that follows the events. The server sends it the changes
// since the snapshot that it was sent last. A slow client gets fewer and later events, and an event that tells it so.
//
// The requests. They are fixed, since other programs send them, but for the three marked with an asterisk:
//
//	GET  /v1/status                  a [Status]
//	GET  /v1/resources               an array of [Resource], in the order of the configuration
//	GET  /v1/devices                 an array of [Device], by resource and ID, then those that are not offered
//	GET  /v1/devices/{id}            a [Device]; here, and to cordon and uncordon, {id} is any name that why takes
//	GET  /v1/events                  an [Event] a line, until the client leaves
//	GET  /v1/why?what=…            * an [Answer]: why a device is offered, or is not
//	GET  /v1/topology              * a [Topology]
//	GET  /v1/kubelet               * {"allocatable": {RESOURCE: COUNT}}: what the kubelet counts, as of the last second
//	GET  /metrics                    the metrics, as Prometheus reads them
//	POST /v1/devices/{id}/cordon     a [Change] with a reason; answered with the [Changed] device, like the next three
//	POST /v1/devices/{id}/uncordon   nothing
//	POST /v1/devices/{id}/reset      a [Change]; answered when it is done, be it after an hour
//	POST /v1/devices/{id}/adopt      a [Change]; answered when it is on disk that the disk may be erased
//
// A refused request is answered {"error": TEXT}: 400 the request makes no sense, 403 the client is not uid 0, 404 there
// is no such device, 409 the device is not in a state for it, 413 and 431 the request is too large, 502 the kubelet does
// not answer, 503 hardware does not answer.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/udev"
)

const (
	// headerLimit is how long a client may take for the head of a request, and idleLimit for the next one. Both are far
	// longer than a program takes, and short enough that an operator who connects by hand and forgets it gives up the
	// place.
	headerLimit = 5 * time.Second
	idleLimit   = 30 * time.Second
	// answerLimit bounds reading a request and writing its answer, and each line of the events.
	answerLimit = 30 * time.Second
	// headerSize and bodySize are the largest request in bytes. net/http adds 4 KiB to the first. The longest that
	// makes sense is a cordon with a reason of 200 bytes.
	headerSize = 4 << 10
	bodySize   = 4 << 10
)

// connections is how many clients of a user are served at once, and how many over the network.
const connections = 64

// Options are the parts of the daemon that the socket shows and can change. All are needed, and each may be used from many
// goroutines.
type Options struct {
	Version   string
	Preview   bool                           // it runs for metalplugctl preview
	File      string                         // the main file of the configuration, absolute, or empty
	Config    *atomic.Pointer[config.Config] // as it applies, after reloads too, but its paths and its source never change
	Started   time.Time                      // of the daemon
	Source    udev.Source                    // of the devices
	Inventory *inventory.Inventory
	Host      *device.Host
	Log       *slog.Logger

	Standing  func() map[string]api.Standing                      // of the resources with the kubelet
	Foreign   func(counted map[string][]string) map[string]string // one ID of each resource that the kubelet counts and that is none of ours
	Unwritten func() []string                                     // which files cannot be written, and why
	// Adopt lets a disk be erased and offered, and returns what there is to say of it.
	Adopt func(ctx context.Context, id, scrub string) (note string, err error)
	Reset func(ctx context.Context, id, scrub string) error // resets a device, or with a scrub erases it
}

// Server is the control socket. Its methods are safe for concurrent use.
type Server struct {
	Options
	*metrics

	links  Links
	asking chan struct{} // holds one value while a client asks why, which enumerates everything

	mu       sync.Mutex
	changed  chan struct{}     // closed and replaced when something changed that is in no snapshot
	reload   api.Configuration // how the last reload ended
	holders  map[string][]api.Pod
	refusals []api.Refusal // the last ones, oldest first

	counted recent // what the kubelet counts
}

// New returns a server that serves nothing until [Server.Serve] and [Server.ServeMetrics].
func New(o Options) *Server {
	s := &Server{Options: o, asking: make(chan struct{}, 1), changed: make(chan struct{})}
	s.metrics = newMetrics(s)
	return s
}

// Changed reports that a resource stands otherwise with the kubelet, or something else that is in no snapshot. It does not
// wait.
func (s *Server) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// next returns a channel that is closed at the next call of Changed. Take it before looking.
func (s *Server) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Reloaded notes how a reload has ended, and which of its settings apply from the next start only: after one that was
// refused they are those of before.
func (s *Server) Reloaded(pending []string, err error) {
	now := time.Now().UTC()
	s.mu.Lock()
	if s.reload.Reloaded = &now; err != nil {
		s.reload.Problem = err.Error()
	} else {
		s.reload.Problem, s.reload.Pending = "", pending
	}
	s.mu.Unlock()
	s.Changed()
}

// SetHolders notes which pods hold which device, by its ID. by is not to be written from then on.
func (s *Server) SetHolders(by map[string][]api.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holders = by
}

// heldBy returns who holds which device. The map is never written.
func (s *Server) heldBy() map[string][]api.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders
}

// refusalsKept is how many refusals are remembered.
const refusalsKept = 16

// refused notes that a container did not get its devices. One that is tried again and again is remembered once.
func (s *Server) refused(resource, call string, err error) {
	r := api.Refusal{Time: time.Now().UTC(), Resource: resource, Call: call, Reason: err.Error()}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := slices.Clone(s.refusals)
	if n := len(last); n > 0 && last[n-1].Resource == r.Resource && last[n-1].Reason == r.Reason {
		last = last[:n-1]
	}
	last = append(last, r)
	s.refusals = last[max(0, len(last)-refusalsKept):]
}

// configuration returns where the configuration is from, and how its last reload has ended.
func (s *Server) configuration() api.Configuration {
	s.mu.Lock()
	c := s.reload
	s.mu.Unlock()
	c.File, c.Files = s.File, []string{}
	for _, name := range s.Config.Load().Files { // absolute, for the client has another directory
		if absolute, err := filepath.Abs(name); err == nil {
			name = absolute
		}
		c.Files = append(c.Files, name)
	}
	return c
}

// Serve answers on a unix socket until ctx ends. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return s.serve(ctx, &clients{Listener: l}, s.routes())
}

// ServeMetrics answers nothing but /metrics until ctx ends, to any client. It closes l.
func (s *Server) ServeMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.sendMetrics())
	return s.serve(ctx, netutil.LimitListener(l, connections), mux)
}

// serve answers on a listener until ctx ends, which cuts off all clients. One that follows the events would keep the daemon
// from stopping.
func (s *Server) serve(ctx context.Context, l net.Listener, routes http.Handler) error {
	server := &http.Server{
		Handler:           http.MaxBytesHandler(routes, bodySize),
		ReadHeaderTimeout: headerLimit,
		ReadTimeout:       answerLimit,
		WriteTimeout:      answerLimit,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    headerSize,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}
