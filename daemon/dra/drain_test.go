// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestDrain(t *testing.T) {
	for name, c := range map[string]struct{ request, want time.Duration }{
		"no request":     {0, 2 * drainInterval},
		"a request":      {time.Second, time.Second + 2*drainInterval},
		"a long request": {time.Minute, drainLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r requests
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
