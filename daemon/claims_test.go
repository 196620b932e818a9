// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/control"
)

// TestClaimWorkOutlastsTheKubelet checks that an erasure continues after the kubelet's request has timed out, and that the
// next request and a release wait for the same erasure.
func TestClaimWorkOutlastsTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &claims{working: make(map[string]*preparing)}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx, func() {}) }()
		synctest.Wait()
		begun := 0
		erase := func(ctx context.Context) error {
			begun++
			select {
			case <-time.After(100 * time.Second):
				return errors.New("the disk is gone")
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for range 2 {
			if err := c.await(t.Context(), "u1", erase); !errors.Is(err, control.ErrWorking) {
				t.Errorf("prepare = %v", err)
			}
		}
		if err := c.await(t.Context(), "u1", nil); err == nil || !strings.Contains(err.Error(), "gone") {
			t.Errorf("unprepare waits for %v", err)
		}
		if err := c.await(t.Context(), "u1", nil); err != nil || begun != 1 {
			t.Errorf("afterwards it waits for %v, and the work began %d times", err, begun)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := c.await(t.Context(), "u1", erase); err == nil {
			t.Error("work begins after the end")
		}
	})
}
