// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"regexp"
	"slices"

	"golang.org/x/net/netutil"

	"github.com/metalplug/metalplug/daemon/api"
)

// ErrWorking means that a claim's devices are still being reset or erased, so the client must repeat its request.
var ErrWorking = errors.New("the claim is not prepared yet")

// ErrReleased means that a claim was released before it was prepared, so no pod waits for the claim.
var ErrReleased = errors.New("the claim was released")

// ServeClaims serves clients until ctx ends, as [Server.Serve] does. On this socket, however, any client may prepare claims and
// report the driver's state, and no client may change a device. The permissions of the socket are the only access control,
// because with PrivateUsers=yes the kernel shows the daemon the same user for all users except root. ServeClaims serves more
// clients at the same time than Serve, and any further client waits. By default, a kubelet runs 110 pods, and the request of each
// pod may wait for an erasure. ServeClaims closes l.
func (s *Server) ServeClaims(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	readingRoutes(s, mux)
	claimRoutes(s, mux, func(next http.HandlerFunc) http.HandlerFunc { return next })
	return s.serve(ctx, netutil.LimitListener(l, 4*maxClients), mux)
}

// claimRoutes adds the requests of metalplug-dra. The function "guard" limits the clients that may send them.
func claimRoutes(s *Server, mux *http.ServeMux, guard func(http.HandlerFunc) http.HandlerFunc) {
	c := claimer{s}
	mux.HandleFunc("POST /v1/claims/{uid}/prepare", guard(c.prepare))
	mux.HandleFunc("POST /v1/claims/{uid}/unprepare", guard(c.unprepare))
	mux.HandleFunc("POST /v1/driver", guard(c.report))
}

// Patterns for the values in a claim. The UID is also used in a file name.
var (
	claimUID     = regexp.MustCompile(`^[0-9A-Za-z][-0-9A-Za-z]{0,62}$`)
	claimRequest = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(/[a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`)
)

// maxClaimDevices is the maximum number of devices in a claim (AllocationResultsMaxSize in k8s.io/api/resource/v1).
const maxClaimDevices = 32

// checkClaim returns an error that describes why a request about a claim is invalid, or nil.
func checkClaim(uid string, c api.Claim) error {
	if !claimUID.MatchString(uid) {
		return fmt.Errorf("%.80q is not a claim UID", uid)
	}
	devices := 0
	for _, r := range c.Requests {
		distinct := slices.Compact(slices.Sorted(slices.Values(r.Devices)))
		if !claimRequest.MatchString(r.Name) || len(distinct) == 0 || len(distinct) < len(r.Devices) {
			return fmt.Errorf("request %.80q has an invalid name, no devices, or the same device twice", r.Name)
		}
		devices += len(distinct)
	}
	if devices > maxClaimDevices {
		return fmt.Errorf("a claim may have at most %d devices, but this claim has %d", maxClaimDevices, devices)
	}
	return nil
}

// claimer answers the requests of metalplug-dra.
type claimer struct{ *Server }

// report records the driver's state for the operator.
func (s claimer) report(w http.ResponseWriter, r *http.Request) {
	var driver api.Driver
	perform(w, readBody(r, &driver), func() (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.driver = driver
		return struct{}{}, nil
	})
}

// prepare prepares a claim's devices.
func (s claimer) prepare(w http.ResponseWriter, r *http.Request) {
	var ask api.Claim
	err := readBody(r, &ask)
	if err == nil && len(ask.Requests) == 0 && ask.Invalid == "" {
		err = errors.New("the claim has no requests")
	}
	s.perform(w, r, ask, err, func(uid string) (any, error) {
		if ask.Invalid != "" {
			return nil, errors.New(ask.Invalid)
		}
		return s.Prepare(r.Context(), api.ClaimRef{UID: uid, Namespace: ask.Namespace, Name: ask.Name}, ask)
	})
}

// unprepare releases a claim's devices.
func (s claimer) unprepare(w http.ResponseWriter, r *http.Request) {
	s.perform(w, r, api.Claim{}, nil, func(uid string) (any, error) { return struct{}{}, s.Unprepare(r.Context(), uid) })
}

// perform is like the function [perform], but also logs errors, and records refusals for the operator. perform waits for the
// first snapshot, because devices from the last run may be missing until then. If metalplugd is stopping, perform closes the
// connection without an answer, so that the client repeats its request.
func (s claimer) perform(w http.ResponseWriter, r *http.Request, ask api.Claim, invalid error, change func(uid string) (any, error)) {
	uid := r.PathValue("uid")
	perform(w, cmp.Or(invalid, checkClaim(uid, ask)), func() (any, error) {
		result, err := any(nil), s.Inventory.Started(r.Context())
		if err == nil {
			result, err = change(uid)
		}
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		if err != nil {
			s.Log.Warn("claim refused", "action", path.Base(r.URL.Path), "err", fmt.Errorf("claim %s: %w", uid, err))
			if !errors.Is(err, ErrWorking) && !errors.Is(err, ErrReleased) {
				s.recordRefusal("claim "+api.ClaimRef{UID: uid, Namespace: ask.Namespace, Name: ask.Name}.String(), path.Base(r.URL.Path), err)
			}
		}
		return result, err
	})
}
