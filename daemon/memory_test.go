// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
)

// Go's own setting holds again once the devices are known, and when the daemon ends before.
func TestGarbageIsCollectedAsUsual(t *testing.T) {
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			usual := debug.SetGCPercent(100)
			defer debug.SetGCPercent(usual)
			ctx, cancel := context.WithCancel(t.Context())
			machine := udevtest.New(t, "")
			d := &daemon{inventory: inventory.New(inventory.Options{Source: machine, Host: &device.Host{}})}
			ended := make(chan error, 2)
			go func() { ended <- d.keepSmall(ctx, func() {}) }()
			synctest.Wait()
			if percent := debug.SetGCPercent(startGarbage); percent != startGarbage {
				t.Errorf("at the start %d %%", percent)
			}
			if known {
				go func() { ended <- d.inventory.Run(ctx) }()
				<-d.inventory.Ready()
				synctest.Wait()
				if percent := debug.SetGCPercent(100); percent != 100 {
					t.Errorf("with the devices known %d %%", percent)
				}
			} else {
				ended <- nil
			}
			cancel()
			for range 2 {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			if percent := debug.SetGCPercent(100); percent != 100 {
				t.Errorf("at the end %d %%", percent)
			}
		})
	}
}

// Two collections come after the start, and after each audit.
func TestMemoryIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &daemon{inventory: inventory.New(inventory.Options{Source: udevtest.New(t, ""), Host: &device.Host{}})}
		ended := make(chan error, 2)
		go func() { ended <- d.inventory.Run(ctx) }()
		go func() { ended <- d.keepSmall(ctx, func() {}) }()
		<-d.inventory.Ready()
		for _, pause := range []time.Duration{startRest, auditing, auditing} {
			before := collections()
			clock.Pass(pause)
			synctest.Wait()
			if n := collections() - before; n < 2 {
				t.Errorf("after %v there were %d collections", pause, n)
			}
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// collections counts those that were asked for.
func collections() uint32 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.NumForcedGC
}
