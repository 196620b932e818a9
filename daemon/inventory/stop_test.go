// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev/udevtest"
)

// TestWhoWaitsForTheEndHoldsNothingUp: who changes the cordons, and has not been heard when the inventory ends, does not keep it
// from writing those that were removed.
func TestWhoWaitsForTheEndHoldsNothingUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), cordonFile)
	if err := os.WriteFile(file, []byte(`{"node-A-w":"loose"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m := udevtest.New(t, "")
	i := New(Options{
		Source: m, Store: OpenStore(filepath.Dir(file), slog.New(slog.DiscardHandler)),
		Host: &device.Host{Tree: sysfs.At(m.Root())},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	<-i.Ready()
	busy, end := make(chan struct{}), make(chan struct{})
	i.post(func(*loop) { close(busy); <-end })
	<-busy
	for range cap(i.requests) { // so that nobody else is heard before the end
		i.post(func(*loop) {})
	}
	uncordoned := make(chan error, 1)
	go func() {
		_, err := i.Uncordon(context.WithoutCancel(ctx), "node-A-w")
		uncordoned <- err
	}()
	for i.cordoning.TryLock() { // until it has it
		i.cordoning.Unlock()
		runtime.Gosched()
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	cancel()
	close(end)
	if err := errors.Join(<-ended, os.Remove(file)); err != nil {
		t.Errorf("the cordons are not there again: %v", err)
	}
	if err := <-uncordoned; !errors.Is(err, errStopped) {
		t.Errorf("uncordoned: %v", err)
	}
}
