// SPDX-License-Identifier: Apache-2.0

// Package control serves the control socket. The socket shows metalplugd's state and events, and lets an operator change devices.
// The protocol is JSON over HTTP/1.1 on a unix socket.
//
// Any client that can open the socket may read. Only a client that runs as uid 0, according to the kernel, may change devices. No
// client can block metalplugd or other clients. The server serves at most 64 clients of each user at the same time. The server
// takes each answer from an immutable snapshot. The server gives one large answer of each kind at a time to root, and one at a
// time to all other users. The server disconnects a client that neither sends nor reads in time. The server does not queue
// events. A client that follows the events gets the changes since the last snapshot that was sent to it. A client that reads
// slowly gets fewer events, and gets them later.
//
// The requests below are stable, because other programs send them. Only the three with an asterisk may change:
//
//	GET  /v1/status                  a [Status]
//	GET  /v1/resources               an array of [Resource], in the order of the configuration
//	GET  /v1/devices                 an array of [Device], by resource and ID, then those that are not offered
//	GET  /v1/devices/{id}            a [Device]; here and for cordon and uncordon, {id} is any name that why accepts
//	GET  /v1/events                  an [Event] a line, until the client disconnects
//	GET  /v1/why?what=…            * an [Answer]: why a device is or is not offered
//	GET  /v1/topology              * a [Topology]
//	GET  /v1/kubelet               * {"allocatable": {RESOURCE: COUNT}}: the kubelet's count, at most a second old
//	GET  /metrics                    the metrics in the format of Prometheus
//	POST /v1/devices/{id}/cordon     a [Change] with a reason; the answer is the [Changed] device, as for the next three
//	POST /v1/devices/{id}/uncordon   an empty body
//	POST /v1/devices/{id}/reset      a [Change]; the answer follows when the work is done, which may take hours
//	POST /v1/devices/{id}/adopt      a [Change]; the answer follows when the permission to erase the disk is on disk
//	POST /v1/claims/{uid}/prepare    an [api.Claim]; the answer is an [api.Prepared]
//	POST /v1/claims/{uid}/unprepare  an empty body; the answer is {}
//	POST /v1/driver                  an [api.Driver]; the answer is {}
//
// The answer to a refused request is {"error": TEXT}, or plain text for an unknown path or method. The status code is 400 for an
// invalid request, and 403 if the client is not uid 0. The status code is 404 for an unknown device or path, and 405 for a method
// that is not in the list above. The status code is 409 if the device's state does not allow the change. The status code is 413
// or 431 if the request is too large, and 502 if the kubelet does not answer. The status code is 503 if hardware does not answer,
// if another client does not read its answer, or if a claim's devices are being reset or erased.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/clients"
	"github.com/metalplug/metalplug/udev"
)

const (
	// headerTimeout is how long a client may take to send a request's header. idleTimeout is how long a client may wait before
	// its next request. Both timeouts are much longer than a program needs, but short enough to close a connection that an
	// operator has forgotten.
	headerTimeout = 5 * time.Second
	idleTimeout   = 30 * time.Second
	// answerTimeout is the time limit for reading a request, for writing its answer, and for writing each line of events.
	answerTimeout = 30 * time.Second
	// maxHeaderLen and maxBodyLen are the maximum sizes, in bytes, of the parts of a request. net/http adds 4 KiB to
	// maxHeaderLen. The longest valid request is a claim with 32 devices.
	maxHeaderLen = 4 << 10
	maxBodyLen   = 16 << 10
)

// maxClients is the maximum number of concurrent clients for each user. It is also the maximum for all network clients together.
const maxClients = 64

// Options contains the parts of metalplugd that clients of the socket can see and change. All fields are required. Each value
// must be safe for concurrent use.
type Options struct {
	Version   string
	Preview   bool                           // whether metalplugctl preview started metalplugd
	File      string                         // absolute path of the main configuration file, or empty
	Config    *atomic.Pointer[config.Config] // active configuration; a reload changes neither its paths nor its source
	Started   time.Time                      // when metalplugd started
	Source    udev.Source                    // source of the devices
	Inventory *inventory.Inventory
	Host      *device.Host // must have no helpers, because a request that changes nothing must not open a device node
	Log       *slog.Logger

	Registrations func() map[string]api.Registration // registration state of each resource
	// Foreign returns, for each resource, an ID that the kubelet counts but metalplugd does not offer.
	Foreign   func(counted map[string][]string) map[string]string
	Unwritten func() []string // files that cannot be written, with the reasons
	// Adopt allows metalplug to erase a disk and then offer it. Adopt returns a note for the operator.
	Adopt func(ctx context.Context, id string, o api.Change) (note string, err error)
	Reset func(ctx context.Context, id string, o api.Change) error // resets a device, or erases it if o contains an erase method
	// Prepare and Unprepare prepare and release a claim's devices. Both may be called repeatedly for the same claim.
	Prepare   func(ctx context.Context, claim api.ClaimRef, ask api.Claim) (api.Prepared, error)
	Unprepare func(ctx context.Context, uid string) error
}

// Server serves the control socket. The methods are safe for concurrent use.
type Server struct {
	Options
	*metrics

	links Links

	mu       sync.Mutex
	changed  chan struct{}     // closed and replaced after a change that no snapshot shows
	reload   api.Configuration // result of the last reload
	refusals []api.Refusal     // latest refusals, oldest first
	driver   api.Driver        // last report of metalplug-dra

	holders atomic.Pointer[map[string][]api.Pod]
	counted recent // the kubelet's device IDs by resource
}

// New returns a server. To serve clients, call [Server.Serve] or [Server.ServeMetrics].
func New(o Options) *Server {
	s := &Server{Options: o, changed: make(chan struct{})}
	s.metrics = newMetrics(s)
	return s
}

// Changed announces a change that no snapshot shows, such as a new registration state of a resource. Changed does not block.
func (s *Server) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// next returns a channel that the next call to Changed closes. A caller must get this channel before it reads the state.
func (s *Server) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Reloaded records the result of a reload, and the changes that take effect only after a restart. If the reload was
// refused, the previously recorded changes remain.
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

// SetHolders records which pods hold each device. The keys of the map are device IDs. The caller must not modify this map
// afterwards.
func (s *Server) SetHolders(by map[string][]api.Pod) { s.holders.Store(&by) }

// heldBy returns the pods that hold each device. The map is never modified.
func (s *Server) heldBy() map[string][]api.Pod {
	return *cmp.Or(s.holders.Load(), new(map[string][]api.Pod))
}

// maxRefusals is the maximum number of refusals that are recorded.
const maxRefusals = 16

// recordRefusal records that metalplugd refused a call of the kubelet for a container or a claim. If the last refusal occurs
// again, the new record replaces it.
func (s *Server) recordRefusal(resource, call string, err error) {
	r := api.Refusal{Time: time.Now().UTC(), Resource: resource, Call: call, Reason: err.Error()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.refusals); n > 0 && s.refusals[n-1].Resource == r.Resource && s.refusals[n-1].Reason == r.Reason {
		s.refusals = s.refusals[:n-1]
	}
	s.refusals = append(s.refusals, r)
	s.refusals = s.refusals[max(0, len(s.refusals)-maxRefusals):]
}

// configuration returns the configuration files and the result of the last reload.
func (s *Server) configuration() api.Configuration {
	s.mu.Lock()
	c := s.reload
	s.mu.Unlock()
	c.File, c.Files = s.File, []string{}
	for _, name := range s.Config.Load().Files { // the client needs absolute names, because it may have another working directory
		if absolute, err := filepath.Abs(name); err == nil {
			name = absolute
		}
		c.Files = append(c.Files, name)
	}
	return c
}

// Serve serves clients on a unix socket until ctx ends. Serve closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return s.serve(ctx, &clients.Listener{Listener: l, Surplus: surplusClient}, s.routes())
}

// ServeMetrics serves /metrics, and no other path, to any client until ctx ends. ServeMetrics closes l.
func (s *Server) ServeMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.sendMetrics())
	return s.serve(ctx, netutil.LimitListener(l, maxClients), mux)
}

// serve serves clients on a listener until ctx ends. When ctx has ended, serve disconnects all clients, because a client that
// follows the events would keep metalplugd from stopping.
func (s *Server) serve(ctx context.Context, l net.Listener, routes *http.ServeMux) error {
	server := &http.Server{
		Handler:           http.MaxBytesHandler(routes, maxBodyLen),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       answerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderLen,
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
