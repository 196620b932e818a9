// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// readingRoutes adds the requests that change nothing. Any client that can open the socket may send them.
func readingRoutes(s *Server, mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { send(w, s.Status()) })
	mux.HandleFunc("GET /v1/resources", func(w http.ResponseWriter, _ *http.Request) {
		snapshot, _ := s.Inventory.Snapshot()
		send(w, s.resources(snapshot))
	})
	mux.HandleFunc("GET /v1/devices", inTurn(s.sendDevices))
	mux.HandleFunc("GET /v1/devices/{id}", inTurn(s.resolveName(s.sendDevice)))
	mux.HandleFunc("GET /v1/events", s.sendEvents)
	mux.HandleFunc("GET /v1/why", inTurn(s.sendWhy))
	mux.HandleFunc("GET /v1/topology", inTurn(func(w http.ResponseWriter, _ *http.Request) {
		snapshot, _ := s.Inventory.Snapshot()
		send(w, NewTopology(&s.Host.Tree, &s.links, snapshot, s.heldBy()))
	}))
	mux.HandleFunc("GET /v1/kubelet", s.sendKubelet)
	mux.Handle("GET /metrics", s.sendMetrics())
}

// routes returns the handler for all requests on the control socket.
func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	readingRoutes(s, mux)
	claimRoutes(s, mux, requireOwner)
	mux.HandleFunc("POST /v1/devices/{id}/cordon", requireOwner(s.resolveName(s.changeHandler(s.cordon))))
	mux.HandleFunc("POST /v1/devices/{id}/uncordon", requireOwner(s.resolveName(s.changeHandler(s.uncordon))))
	mux.HandleFunc("POST /v1/devices/{id}/reset", s.changeHandler(
		// A reset that has started continues after the client disconnects.
		func(ctx context.Context, id string, c request) (string, error) {
			return "", s.Reset(context.WithoutCancel(ctx), id, c.Change)
		}))
	mux.HandleFunc("POST /v1/devices/{id}/adopt", s.changeHandler(
		func(ctx context.Context, id string, c request) (string, error) { return s.Adopt(ctx, id, c.Change) }))
	return mux
}

// turnTimeout is how long a client waits for its turn. The rest of [answerTimeout] remains for the client's own answer.
const turnTimeout = 10 * time.Second

// inTurn returns a handler that gives one answer at a time to root, and one at a time to all other users. inTurn is for requests
// that need much memory or time on a node with many devices. Without inTurn, clients that do not read their answers could
// exceed metalplugd's memory limit.
func inTurn(next http.HandlerFunc) http.HandlerFunc {
	turns := map[bool]chan struct{}{true: make(chan struct{}, 1), false: make(chan struct{}, 1)}
	return func(w http.ResponseWriter, r *http.Request) {
		turn := turns[r.RemoteAddr == "0"]
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
			next(w, r)
		case <-r.Context().Done():
		case <-time.After(turnTimeout):
			refuse(w, http.StatusServiceUnavailable, errors.New("an earlier request is still in progress: its client does not read "+
				"the answer, or hardware does not answer; repeat the command"))
		}
	}
}

// refuse sends the reason why a request is refused.
func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(api.Refused{Text: err.Error()}) // the client may have disconnected
}

// send sends an answer as JSON.
func send(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may have disconnected
}

// sendDevices sends the offered devices, sorted by resource and ID, followed by the other devices.
func (s *Server) sendDevices(w http.ResponseWriter, _ *http.Request) {
	snapshot, _ := s.Inventory.Snapshot()
	holders, all := s.heldBy(), []api.Device{}
	for d := range snapshot.All() {
		all = append(all, NewDevice(d, holders))
	}
	send(w, all)
}

// sendDevice sends one device, which need not be offered.
func (s *Server) sendDevice(w http.ResponseWriter, r *http.Request) {
	d, err := s.device(r.PathValue("id"))
	if err != nil {
		refuse(w, http.StatusNotFound, err)
		return
	}
	send(w, d)
}

// device returns a device's current state. The error is [inventory.ErrUnknownDevice] if there is no such device.
func (s *Server) device(id string) (api.Device, error) {
	snapshot, _ := s.Inventory.Snapshot()
	status := snapshot.Find(id)
	if status == nil {
		return api.Device{}, unknown(id)
	}
	return NewDevice(status, s.heldBy()), nil
}

// unknown returns the error for a name that no device has.
func unknown(name string) error {
	return fmt.Errorf("%s: %w; to see all devices: metalplugctl list --all", name, inventory.ErrUnknownDevice)
}

// countLifetime is how long an answer from the kubelet is reused. The kubelet accepts at most 100 requests per second from all
// its clients together (kubernetes v1.36 pkg/kubelet/apis/podresources, constants.go). Clients must not use up this limit,
// because metalplugd also needs answers to its own requests.
const countLifetime = time.Second

// recent is the kubelet's last answer, which is reused for [countLifetime]. The zero value contains no answer.
type recent struct {
	mu  sync.Mutex
	at  time.Time
	ids map[string][]string
	err error
}

// get returns the last answer if it is younger than [countLifetime], and otherwise calls the function ask. Only one such call is
// in progress at a time.
func (r *recent) get(ask func() (map[string][]string, error)) (map[string][]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() || time.Since(r.at) >= countLifetime {
		r.ids, r.err = ask()
		r.at = time.Now()
	}
	return r.ids, r.err
}

// sendKubelet sends the kubelet's count of devices.
func (s *Server) sendKubelet(w http.ResponseWriter, r *http.Request) {
	// The request to the kubelet continues even if this client disconnects, because other clients may be waiting for the same
	// answer.
	ids, err := s.counted.get(func() (map[string][]string, error) {
		return kubelet.Allocatable(context.WithoutCancel(r.Context()), s.Config.Load().Paths.PodResources)
	})
	if err != nil {
		refuse(w, http.StatusBadGateway, err)
		return
	}
	counted := api.KubeletCounts{Allocatable: make(map[string]int, len(ids)), Foreign: s.Foreign(ids)}
	for resource, all := range ids {
		counted.Allocatable[resource] = len(all)
	}
	send(w, counted)
}
