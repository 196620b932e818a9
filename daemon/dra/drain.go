// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"regexp"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/metalplug/metalplug/internal/liveness"
)

const (
	// drainLimit is the maximum time that a stopping driver waits for running requests. drainLimit is shorter than
	// TimeoutStopSec= of the unit.
	drainLimit = 10 * time.Second
	// drainInterval is how often drain checks the number of requests in progress. The interval also leaves time to send the last
	// answer.
	drainInterval = 5 * time.Millisecond
	// stopLimit is how long a stopping driver goes on repeating requests. After this limit, there is still time to send the last
	// answers.
	stopLimit = 8 * time.Second
	// requestLimit is the maximum duration of a request, with its repetitions. The kubelet waits 45 s for the answer
	// (defaultClientCallTimeout in kubernetes v1.36, pkg/kubelet/cm/dra/plugin). metalplugd answers within 40 s, if it is running.
	requestLimit = 43 * time.Second
)

// permanent matches the library's errors that have no type (getResourceClaims in kubeletplugin/draplugin.go). If another version
// words them differently, the driver repeats the request until requestLimit.
var permanent = regexp.MustCompile(`^get resource claims: claim \S+ (got replaced|not allocated)$`)

// requests counts the kubelet's requests that are in progress.
type requests struct {
	running    atomic.Int64
	stop       chan struct{}               // closed when the driver must not repeat requests any more
	failed     func([]*drapb.Claim, error) // called if claims cannot be prepared within requestLimit
	registered chan struct{}               // has a buffer of one, which is filled when a kubelet has registered the driver
}

// intercept counts a request while it is in progress. intercept repeats a request to prepare claims while the API server or
// metalplugd does not answer. If intercept returned an error immediately, the kubelet would wait for 60 to 90 s before it repeats
// the request (kubernetes/kubernetes#139836). If the claim does not exist, was replaced or is not allocated, intercept does not
// repeat the request. If the driver uses the node's identity, the API server answers Forbidden for a claim that does not exist.
// Forbidden may also be a temporary answer, so intercept repeats the request after Forbidden. If the API server or metalplugd
// hangs, intercept ends the request before the kubelet does. The pod then gets an event with the cause.
func (r *requests) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	r.running.Add(1)
	defer r.running.Add(-1)
	if _, ok := request.(*registration.RegistrationStatus); ok {
		liveness.Poke(r.registered)
	}
	ctx, end := context.WithTimeout(ctx, requestLimit)
	defer end()
	for {
		answer, err := handle(ctx, request)
		prepare, prepares := request.(*drapb.NodePrepareResourcesRequest)
		if err == nil || !prepares || apierrors.IsNotFound(err) || permanent.MatchString(err.Error()) {
			return answer, err
		}
		select {
		case <-time.After(retryInterval):
			continue
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				r.failed(prepare.Claims, err)
			}
		case <-r.stop:
		}
		return answer, err
	}
}

// drain blocks until no request is in progress, for at most 10 s. A package upgrade restarts metalplugd and the driver, so a
// request may be waiting for metalplugd. drain must be called once. Without drain, the library would close its connections
// immediately. A pod with a request in progress would then get an event that says that its devices cannot be prepared.
func (r *requests) drain() {
	end := time.Now().Add(drainLimit)
	time.AfterFunc(stopLimit, func() { close(r.stop) })
	for idle := 0; idle < 2 && time.Now().Before(end); {
		<-time.After(drainInterval)
		if idle++; r.running.Load() > 0 {
			idle = 0
		}
	}
}
