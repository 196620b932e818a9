// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

const (
	// drainLimit is the maximum time that a stop waits for requests. TimeoutStopSec= of the unit is longer.
	drainLimit = 10 * time.Second
	// drainInterval is the time between two looks at the number of requests. It also leaves time to send the last answer.
	drainInterval = 5 * time.Millisecond
)

// requests counts the requests of the kubelet that are being answered. The zero value is ready to use.
type requests struct{ running atomic.Int64 }

// intercept counts a request while it is being answered.
func (r *requests) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	r.running.Add(1)
	defer r.running.Add(-1)
	return handle(ctx, request)
}

// drain blocks until no request is being answered, for 10 s at most. The library ends its connections without a wait, and the
// pod of a request would get an event that its devices are not prepared.
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
