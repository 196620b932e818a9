// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

const (
	// drainLimit is the maximum time to wait for running requests at a stop. It is shorter than TimeoutStopSec= of the unit.
	drainLimit = 10 * time.Second
	// drainInterval is the time between two checks of the number of requests. It also leaves time to send the last answer.
	drainInterval = 5 * time.Millisecond
)

// requests counts the kubelet's requests that are in progress. The zero value is ready to use.
type requests struct{ running atomic.Int64 }

// intercept counts a request while it is in progress.
func (r *requests) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	r.running.Add(1)
	defer r.running.Add(-1)
	return handle(ctx, request)
}

// drain blocks until no request is in progress, for at most 10 s. The library closes its connections at once. Without drain,
// the pod of a running request would get an event that its devices cannot be prepared.
func (r *requests) drain() {
	limit := time.After(drainLimit)
	for idle := false; ; {
		select {
		case <-limit:
			return
		case <-time.After(drainInterval):
		}
		was := idle
		if idle = r.running.Load() == 0; idle && was {
			return
		}
	}
}
