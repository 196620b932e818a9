// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

func TestDrain(t *testing.T) {
	for name, c := range map[string]struct{ request, want time.Duration }{
		"no request":     {0, 2 * drainInterval},
		"a request":      {time.Second, time.Second + 2*drainInterval},
		"a long request": {time.Minute, drainLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := requests{stop: make(chan struct{})}
				var all sync.WaitGroup
				defer all.Wait()
				all.Go(func() {
					_, _ = r.intercept(t.Context(), nil, nil, func(context.Context, any) (any, error) {
						<-time.After(c.request)
						return nil, nil
					})
				})
				synctest.Wait()
				began := time.Now()
				r.drain()
				if took := time.Since(began); took < c.want-drainInterval || took > c.want+drainInterval {
					t.Errorf("it took %v, want %v", took, c.want)
				}
			})
		})
	}
}

// After an error the kubelet would wait for a minute, although the API server was down for a second. If the API server hangs, the
// kubelet would end the request after 45 s without the cause. An upgrade restarts metalplugd and metalplug-dra, so a request may
// wait for metalplugd while metalplug-dra stops.
func TestRepeat(t *testing.T) {
	errDown := errors.New("the API server does not answer")
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, "c1")
	for name, c := range map[string]struct {
		request           any
		down, stops, want time.Duration
		err               error
		hangs             bool
	}{
		"prepare, down for a second":  {&drapb.NodePrepareResourcesRequest{}, time.Second, time.Hour, time.Second, errDown, false},
		"prepare, down for an hour":   {&drapb.NodePrepareResourcesRequest{}, time.Hour, 2 * time.Hour, requestLimit, errDown, false},
		"prepare, the driver stops":   {&drapb.NodePrepareResourcesRequest{}, time.Hour, time.Second, time.Second + stopLimit, errDown, false},
		"prepare, an upgrade":         {&drapb.NodePrepareResourcesRequest{}, 3 * time.Second, time.Second, 3 * time.Second, errDown, false},
		"prepare, the server hangs":   {&drapb.NodePrepareResourcesRequest{}, time.Hour, 2 * time.Hour, requestLimit, errDown, true},
		"unprepare, which may repeat": {&drapb.NodeUnprepareResourcesRequest{}, time.Second, time.Hour, 0, errDown, false},
		"prepare, the claim is gone":  {&drapb.NodePrepareResourcesRequest{}, time.Second, time.Hour, 0, fmt.Errorf("get resource claims: %w", gone), false},
		"prepare, the claim is new":   {&drapb.NodePrepareResourcesRequest{}, time.Second, time.Hour, 0, errors.New("get resource claims: claim ns/c1 got replaced"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var recorded error // by metalplugd
				r, began := requests{stop: make(chan struct{}), failed: func(_ []*drapb.Claim, err error) { recorded = err }}, time.Now()
				time.AfterFunc(c.stops, r.drain)
				_, err := r.intercept(t.Context(), c.request, nil, func(ctx context.Context, _ any) (any, error) {
					if c.hangs {
						<-ctx.Done()
					}
					if time.Since(began) < c.down {
						return nil, c.err
					}
					return nil, nil
				})
				if took := time.Since(began); took < c.want-retryInterval || took > c.want+retryInterval || (err == nil) != (took >= c.down) {
					t.Errorf("it took %v and the error is %v, want %v", took, err, c.want)
				}
				if (recorded != nil) != (c.want == requestLimit) {
					t.Errorf("metalplugd has recorded %v", recorded)
				}
				<-time.After(drainLimit) // drain must end before the test
			})
		})
	}
}
