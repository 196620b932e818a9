// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/metalplug/metalplug/systemd"
)

// pingWatchdog notifies the service manager as long as all loops in the daemon make progress. These are the loops of the
// inventory, of the watch on the kubelet's directory, and of each endpoint.
func (d *daemon) pingWatchdog(ctx context.Context, ready func()) error {
	ready()
	interval, err := systemd.WatchdogInterval()
	if err != nil {
		return err
	}
	var tick <-chan time.Time // nil if there is no watchdog
	if interval > 0 {
		tick = time.Tick(interval)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
		// If a loop does not answer, check again immediately. If the loop was slow but not stuck, the second check still succeeds
		// before the service manager's timeout. If the loop is stuck, the error is logged before the service manager kills the
		// daemon.
		for err := d.alive(ctx, interval/2); err != nil; err = d.alive(ctx, interval/2) {
			if ctx.Err() != nil {
				return nil
			}
			d.Log.Error("no progress", "err", err)
		}
		d.notify(systemd.Alive())
	}
}

// alive checks all loops concurrently. The error names each loop that has not answered within the limit.
func (d *daemon) alive(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	loops := []func(context.Context) error{d.inventory.Alive, d.watch.Alive}
	for _, endpoint := range d.endpoints.all() {
		loops = append(loops, endpoint.Alive)
	}
	errs := make([]error, len(loops))
	var asking sync.WaitGroup
	for i, alive := range loops {
		asking.Go(func() { errs[i] = alive(ctx) })
	}
	asking.Wait()
	return errors.Join(errs...)
}
