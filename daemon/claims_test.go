// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/control"
)

// TestClaimWorkOutlastsTheKubelet checks that an erasure continues after the kubelet's request has timed out, and that the
// next request waits for the same erasure. A release begins only after the erasure, and a preparation only after the release.
func TestClaimWorkOutlastsTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &claims{working: make(map[string]*preparation)}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx, func() {}) }()
		synctest.Wait()
		begun, working := "", 0
		work := func(name string, failed error) func(context.Context) (api.Prepared, error) {
			return func(ctx context.Context) (p api.Prepared, err error) {
				begun, working = begun+name, working+1
				defer func() { working-- }()
				if working > 1 {
					t.Errorf("%s begins during other work on the claim", name)
				}
				select {
				case <-time.After(100 * time.Second):
					return p, failed
				case <-ctx.Done():
					return p, ctx.Err()
				}
			}
		}
		gone := errors.New("the disk is gone")
		erase, release := work("E", gone), work("R", nil)
		await := func(releases bool, start func(context.Context) (api.Prepared, error)) error {
			defer synctest.Wait()
			ctx, cancel := context.WithTimeoutCause(t.Context(), claimLimit, control.ErrWorking)
			defer cancel()
			_, err := c.await(ctx, "u1", releases, start)
			return err
		}
		for range 2 {
			if err := await(false, erase); !errors.Is(err, control.ErrWorking) {
				t.Errorf("prepare = %v", err)
			}
		}
		if err := await(true, release); !errors.Is(err, control.ErrWorking) || begun != "ER" {
			t.Errorf("unprepare = %v, and the work that began is %s", err, begun)
		}
		if err := await(false, erase); !errors.Is(err, control.ErrWorking) || begun != "ER" {
			t.Errorf("prepare during unprepare = %v, and the work that began is %s", err, begun)
		}
		<-time.After(claimLimit)
		if err := await(false, erase); !errors.Is(err, control.ErrWorking) || begun != "ERE" {
			t.Errorf("prepare after unprepare = %v, and the work that began is %s", err, begun)
		}
		<-time.After(claimLimit)
		if err := await(false, erase); !errors.Is(err, gone) {
			t.Errorf("prepare waits for %v", err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := await(false, erase); err == nil || errors.Is(err, gone) {
			t.Error("work begins after the end")
		}
	})
}
