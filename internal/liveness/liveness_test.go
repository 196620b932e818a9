// SPDX-License-Identifier: Apache-2.0

package liveness_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/internal/liveness"
)

// TestMain checks that no test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// TestAlive checks that a loop answers each question, even after a question was abandoned.
func TestAlive(t *testing.T) {
	var p liveness.Probe
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Alive(ctx, "loop"); !errors.Is(err, context.Canceled) || err.Error() != "wait for the loop: context canceled" {
		t.Errorf("of a loop that does not run: %v", err)
	}
	ended := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(ended)
		defer p.End()
		for {
			select {
			case <-p.Asked():
			case <-stop:
				return
			}
		}
	}()
	for range 100 {
		if err := p.Alive(t.Context(), "loop"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-ended
	if err := p.Alive(t.Context(), "loop"); err != nil {
		t.Errorf("of a loop that has ended: %v", err)
	}
}
