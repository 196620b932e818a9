// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// startRest is how long after the start the memory that it took is given back, most of which was for the enumeration
	// and for the kubelet's first list.
	startRest = 4 * time.Second
	// startGarbage is how much garbage there may be at the start, in percent of the live data. Live data is allocated
	// between it, and each piece that is collected late leaves a permanent hole. With 10,000 devices that is a third of
	// the heap at Go's usual 100, and a fifth at 12, which takes 3 % more CPU until the daemon is ready.
	startGarbage = 12
)

// keepSmall collects garbage often until all devices are known. Once the memory of the start is free, and then after each
// audit, which takes as much again, it returns unused memory to the kernel. Memory in a pool, such as the bytes of a
// list, is freed at the second collection.
func (d *daemon) keepSmall(ctx context.Context, ready func()) error {
	usual := debug.SetGCPercent(startGarbage)
	ready()
	select {
	case <-ctx.Done():
	case <-d.inventory.Ready():
	}
	debug.SetGCPercent(usual)
	rest := time.NewTimer(startRest)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rest.C:
			runtime.GC()
			debug.FreeOSMemory()
			rest.Reset(auditing)
		}
	}
}
